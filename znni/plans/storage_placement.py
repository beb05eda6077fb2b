"""Places of an exact network's arrays in an arena, from the steps that use them.

An array lives from the first step that writes into it to the last that reads from it. The largest
arrays are placed first, each as low as its life allows. So the places are known before anything
runs, and so is the memory of a patch, with all its gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from znni.core.shapes import round_up
from znni.machine.machine import DeviceKind
from znni.machine.packed_arrays import packed_bytes
from znni.network.network import INPUT
from znni.plans.block_storage import BlockStorage
from znni.plans.packed import packed_storages
from znni.plans.placement import Placement, StepPlace
from znni.plans.segments import Step

# A sector of a GPU's memory, in samples and in bytes.
SECTOR, SECTOR_BYTES = 8, 32

NONE_PACKED: Mapping[str, int] = MappingProxyType({})


class Life(NamedTuple):
    """The steps during which an array is in use, both included."""

    first: int
    last: int


class _Block(NamedTuple):
    """Memory to be placed.

    Attributes:
        nbytes: its bytes.
        life: the steps during which it is in use.
        name: the storage's name, or the number of the step that it is workspace for.
    """

    nbytes: int
    life: Life
    name: str | int


def lives(steps: tuple[Step, ...], storage: BlockStorage) -> dict[str, Life]:
    """Return the life of each storage, by name; the network's input is not among them."""
    found: dict[str, Life] = {}
    for index, step in enumerate(steps):
        for name in (step.gives, *step.takes):
            at = storage.locations[name].storage
            found[at] = Life(found[at].first if at in found else index, index)
    found.pop(INPUT, None)
    output = storage.locations[steps[-1].gives].storage
    found[output] = Life(found[output].first, len(steps))
    return found


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
    first = storage.made(makers[0].gives).start.x
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
    shape = storage.storages[name].shape
    if name in packed:
        return packed_bytes(shape, packed[name])
    if device == "cpu" or name == INPUT:
        return shape.nbytes
    return shape._replace(x=round_up(shape.x, SECTOR)).nbytes + SECTOR_BYTES


def bytes_apart(step: Step, storage: BlockStorage, device: DeviceKind) -> int:
    """Return the bytes of a step's output if it is made apart, and then copied to its place.

    Some of a GPU's primitives make arrays without gaps.
    """
    is_apart = device == "gpu" and not storage.fills_storage(step.gives)
    return step.shape_out.nbytes if is_apart else 0


def is_staged(step: Step, storage: BlockStorage, device: DeviceKind) -> bool:
    """Return whether a step's output is made apart, and then copied to its place."""
    return not step.cost.writes_views and bytes_apart(step, storage, device) > 0


def held_beside_steps(
    steps: tuple[Step, ...], storage: BlockStorage, device: DeviceKind = "cpu"
) -> Iterator[tuple[Step, int]]:
    """Yield each step with the bytes alive during it, less those of its input and output.

    The result is negative for a step whose input and output share memory.
    """
    given = storage_bytes(INPUT, storage, device)
    packed = packed_storages(steps, storage)
    alive_during = [
        (storage_bytes(name, storage, device, packed), life)
        for name, life in lives(steps, storage).items()
    ]
    for index, step in enumerate(steps):
        alive = sum(nbytes for nbytes, life in alive_during if life.first <= index <= life.last)
        alive += _staged_bytes(step, storage, device)
        yield step, given + alive - step.shape_in.nbytes - step.shape_out.nbytes


def _staged_bytes(step: Step, storage: BlockStorage, device: DeviceKind) -> int:
    return step.shape_out.nbytes if is_staged(step, storage, device) else 0


def storage_placement(
    steps: tuple[Step, ...],
    storage: BlockStorage,
    alignment: int = 1,
    spare: int = 0,
    device: DeviceKind = "cpu",
) -> Placement:
    """Return places for the storages of a block, and for the workspace of its steps.

    The network's input has no place: it lies outside the arena.

    Args:
        steps: the steps in order.
        storage: the storages.
        alignment: the bytes of which every array's beginning is a multiple.
        spare: bytes of each step beside its workspace, for the alignment of the arrays in it.
        device: the device of the steps. Outputs that are made apart lie in the workspace.
    """
    packed = packed_storages(steps, storage)
    blocks = [
        _Block(round_up(storage_bytes(name, storage, device, packed), alignment), life, name)
        for name, life in lives(steps, storage).items()
    ]
    blocks += [
        _Block(
            round_up(step.cost.memory.workspace, alignment)
            + round_up(_staged_bytes(step, storage, device), alignment)
            + spare,
            Life(index, index),
            index,
        )
        for index, step in enumerate(steps)
    ]
    places = _placed(blocks)
    size = max(places[block.name] + block.nbytes for block in blocks)
    return Placement(
        size,
        (
            tuple(
                StepPlace(
                    places[storage.locations[step.gives].storage],
                    _free(places[index], blocks, index),
                )
                for index, step in enumerate(steps)
            ),
        ),
    )


def _free(start: int, blocks: list[_Block], index: int) -> tuple[int, int]:
    """Return the beginning and the end of a step's workspace."""
    (nbytes,) = (block.nbytes for block in blocks if block.name == index)
    return start, start + nbytes


def _placed(blocks: list[_Block]) -> Mapping[str | int, int]:
    """Return where each block begins: the largest first, each as low as its life allows."""
    placed: list[tuple[int, _Block]] = []
    for block in sorted(blocks, key=lambda it: (-it.nbytes, it.life)):
        start = 0
        for low, other in sorted(placed, key=lambda it: it[0]):
            together = block.life.first <= other.life.last and other.life.first <= block.life.last
            if together and low < start + block.nbytes and start < low + other.nbytes:
                start = low + other.nbytes
        placed.append((start, block))
    return {block.name: start for start, block in placed}
