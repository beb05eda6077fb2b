"""Layout of a tiled network's arrays on a device: their bytes, and the gaps between rows.

On a GPU a row begins at a sector, because sectors that are written in part take much longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from znni.core.processors import DeviceKind, has_own_memory
from znni.core.shapes import Shape5, round_up
from znni.machine.packed_arrays import packed_bytes
from znni.network.layers import PackedLayer
from znni.network.node import INPUT
from znni.plans.block_storage import BlockStorage
from znni.plans.segments import Step

# A sector of a GPU's memory, in samples and in bytes.
SECTOR, SECTOR_BYTES = 8, 32

NONE_PACKED: Mapping[str, int] = MappingProxyType({})


class Rows(NamedTuple):
    """The places of a storage's rows in memory.

    Attributes:
        first: the samples before the first row.
        pitch: the samples from row to row.
    """

    first: int
    pitch: int


def device_rows(name: str, steps: tuple[Step, ...], storage: BlockStorage) -> Rows:
    """Return how the rows of a storage lie on a GPU.

    What steps write begins at a sector in each row: sectors that are written in part take much
    longer. If a step's output can have no gaps, neither has the storage.
    """
    makers = [step for step in steps if storage.locations[step.gives].storage == name]
    extent = storage.storages[name].shape.x
    if not all(step.cost.writes_views for step in makers):
        return Rows(0, extent)
    first = storage.computed_box(makers[0].gives).start.x
    return Rows(-first % SECTOR, round_up(extent, SECTOR))


def storage_bytes(
    name: str, storage: BlockStorage, device: DeviceKind, packed: Mapping[str, int] = NONE_PACKED
) -> int:
    """Return the bytes of a storage; on a GPU, with gaps between its rows and before the first.

    Args:
        name: the name of the storage.
        storage: the storages.
        device: the device.
        packed: the storages whose values are packed, with the parts of their numbers. They have no
            gaps.
    """
    parts = packed.get(name, 0)
    has_gaps = has_own_memory(device) and name != INPUT and not parts
    nbytes = array_bytes(storage.storages[name].shape, parts, has_gaps=has_gaps)
    return nbytes + SECTOR_BYTES if has_gaps else nbytes


def array_bytes(shape: Shape5, parts: int, *, has_gaps: bool) -> int:
    """Return the bytes of an array: of packed numbers in so many parts, or of float32.

    Args:
        shape: its shape.
        parts: the parts of packed numbers; 0: they are float32.
        has_gaps: whether its rows of float32 begin at sectors, as on a GPU.
    """
    if parts:
        return packed_bytes(shape, parts)
    return (shape._replace(x=round_up(shape.x, SECTOR)) if has_gaps else shape).nbytes


def packed_storages(steps: Iterable[Step], storage: BlockStorage) -> Mapping[str, int]:
    """Return the storages whose values are packed, with the parts of their numbers."""
    return {
        storage.locations[step.gives].storage: step.operation.parts
        for step in steps
        if isinstance(step.operation, PackedLayer) and step.operation.writes
    }


def copied_bytes(step: Step, storage: BlockStorage, device: DeviceKind) -> int:
    """Return the bytes of a step's output if it is made elsewhere, and then copied to its place.

    Some of a GPU's primitives make arrays without gaps.
    """
    is_copied = has_own_memory(device) and not storage.fills_storage(step.gives)
    return step.shape_out.nbytes if is_copied else 0
