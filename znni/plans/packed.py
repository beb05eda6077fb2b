"""The arrays of an exact network's block that hold packed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from znni.network.layers import PackedLayer
from znni.plans.block_storage import BlockStorage
from znni.plans.segments import Step


def packed_storages(steps: Iterable[Step], storage: BlockStorage) -> Mapping[str, int]:
    """Return the storages whose values are packed, with the parts of their numbers."""
    return {
        storage.locations[step.gives].storage: step.operation.parts
        for step in steps
        if isinstance(step.operation, PackedLayer) and step.operation.writes
    }
