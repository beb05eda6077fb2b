"""Packed values of an exact network's block: which arrays hold them, and whether steps agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from znni.network.layers import Conv, Normalize, PackedLayer
from znni.plans.block_storage import ZERO, BlockStorage
from znni.plans.segments import Step


def stays(storage: BlockStorage, name: str, norm: str) -> bool:
    """Return whether a norm lies in its own storage, and there where its input does."""
    before, at = storage.locations[name], storage.locations[norm]
    read = storage.geometry.reads[norm][0].shifted(ZERO - before.start)
    where = (before.storage, before.first_map, read)
    return at.storage == norm and where == (at.storage, at.first_map, storage.made(norm))


def norms_whole(storage: BlockStorage, name: str, norm: str) -> bool:
    """Return whether a norm reads all samples that the step of a value computes, and no others."""
    geometry = storage.geometry
    return geometry.reads[norm][0] == geometry.frames[name].computed


def packed_storages(steps: Iterable[Step], storage: BlockStorage) -> Mapping[str, int]:
    """Return the storages whose values are packed, with the parts of their numbers."""
    return {
        storage.locations[step.gives].storage: step.operation.parts
        for step in steps
        if isinstance(step.operation, PackedLayer) and step.operation.writes
    }


def reads_what_is_made(steps: Iterable[Step], storage: BlockStorage) -> bool:
    """Return whether all steps agree which values are packed, added up, or to be normalized."""
    steps = tuple(steps)
    packed = packed_storages(steps, storage)
    added_up = {step.gives for step in steps if _has_sums(step, Conv)}
    left = {
        step.gives: step.on_float32
        for step in steps
        if isinstance(step.operation, PackedLayer) and step.operation.leaves
    }
    read = Counter(name for step in steps for name in step.takes)

    def parts(name: str) -> int:
        return packed.get(storage.locations[name].storage, 0)

    for step in steps:
        operation, reads, writes, norm = step.operation, 0, 0, None
        if isinstance(operation, PackedLayer):
            reads, writes = operation.reads * operation.parts, operation.writes * operation.parts
            norm = operation.norm
        if _has_sums(step, Normalize):
            (name,) = step.takes
            if name not in added_up or not norms_whole(storage, name, step.gives):
                return False
        if step.gives in left and (
            read[step.gives] != 1 or not stays(storage, step.takes[0], step.gives)
        ):
            return False
        if [left[name] for name in step.takes if name in left] != ([norm] if norm else []):
            return False
        if parts(step.gives) != writes or any(parts(it) != reads for it in step.takes):
            return False
    return True


def _has_sums(step: Step, kind: type[Conv] | type[Normalize]) -> bool:
    operation = step.operation
    return (
        isinstance(operation, PackedLayer) and operation.sums and isinstance(operation.layer, kind)
    )
