"""Sweeps: the planes that each step keeps from one block of a column to the next.

Blocks of a column follow one another along an axis, and planes are those across it. The input of
each step is an array with some planes that are kept, and new ones behind them. So a step computes
only new planes, and no plane twice. A convolution of extent ``k`` keeps ``k - 1`` planes, and a
pooling one less than its window.

The first block of a column finds no kept planes. So its steps first run for these planes. This also
happens after a block that was not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from znni.core.processors import DeviceKind, has_own_memory
from znni.core.shapes import ONE, ZERO, Axis, Box, Shape5, Vec3, extent, resized, round_up
from znni.network.geometry import block_geometry
from znni.network.layers import Layer, Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.plans.array_layout import array_bytes, packed_storages
from znni.plans.block_storage import BlockStorage
from znni.plans.segments import Segment, Step
from znni.plans.totals import Number


class Swept(NamedTuple):
    """The planes of a block and of a column.

    Attributes:
        axis: the axis of the column.
        new: the output planes of a block.
        run: the mean number of blocks that go on from each other.
        taken: the most planes of the input that layers take at a time.
    """

    axis: Axis
    new: int
    run: float
    taken: int

    def brought(self, given: Shape5) -> Shape5:
        """Return the shape of the part of an input that a GPU holds at a time."""
        return resized(given, self.axis, self.taken)

    def passes(self, behind: int) -> int:
        """Return how often a step runs before the first block of a column.

        Args:
            behind: the planes before the block's that later steps need of its output.
        """
        return -(-behind // self.new)

    def share(self, behind: int) -> float:
        """Return how often a step runs for a block, on average over a column."""
        return runs_for_block(behind, self.new, self.run)


def runs_for_block(behind: int, new: Number, run: Number) -> Number:
    """Return how often a step runs for a block, on average over blocks that go on from each other.

    Args:
        behind: the planes before the block's that later steps need of its output.
        new: the output planes of a block, or of each of several kinds of blocks.
        run: the number of blocks that go on from each other.
    """
    return 1 + -(-behind // new) / run


class KeptPlanes(NamedTuple):
    """The planes of an array that a sweep keeps until it is filled again.

    Attributes:
        passes: how often the array is filled for a block.
        shape: the shape of the planes that are kept of each filling.
        at: where they lie in the array, before the new ones.
        ahead: the samples by which the planes lie further on that the next block needs there.
        nbytes: the bytes of the kept planes, for all passes.
    """

    passes: int
    shape: Shape5
    at: Box
    ahead: Vec3
    nbytes: int

    @property
    def new(self) -> Box:
        """The place of the new planes, behind the kept ones."""
        ends = zip(*self.at, self.ahead, strict=True)
        start = Vec3(*(stop if ahead else start for start, stop, ahead in ends))
        return Box(start, self.at.stop + self.ahead)

    @property
    def first_and_last(self) -> tuple[Box, Box]:
        """The places of the kept planes, and of those that the next block keeps."""
        return self.at, self.at.shifted(self.ahead)


class SweptStep(NamedTuple):
    """A step's part in a sweep.

    Attributes:
        behind: the planes before the block's, in voxels, that later steps need of its output.
        kept: the planes that are kept of its output's array; None: no planes.
    """

    behind: int = 0
    kept: KeptPlanes | None = None


class InputPlanes(NamedTuple):
    """The planes that a sweep keeps of the input of a sliding network's step.

    Attributes:
        planes: the planes before the new ones in the array of its input.
        behind: the planes before the block's, in voxels, that later steps need of its output.
        passes: how often the array of its input is filled for a block.
        shape: the shape of the planes kept of one such array. None: no planes, or the input is
            read again.
    """

    planes: int
    behind: int
    passes: int
    shape: Shape5 | None


def planes_kept(layer: Layer, axis: Axis) -> int:
    """Return the planes of its input that a layer of a sliding network keeps in a sweep."""
    return extent(layer.reads(Box(ZERO, ONE)).size, axis) - 1


def swept_for(network: Network, patch: Vec3, output: Vec3, workers: int = 1) -> Swept | None:
    """Return the planes of a sweep in blocks of a size; None if the network is not swept.

    If several workers share the last columns, each begins a sweep of its own.

    Args:
        network: the network.
        patch: the output voxels of a block.
        output: the output voxels of the job.
        workers: the number of processes that compute.
    """
    if (axis := network.swept_along) is None:
        return None
    new, counts = extent(patch, axis), output.ceil_div(patch)
    begun = round_up(resized(counts, axis, 1).volume, max(1, workers))
    return Swept(axis, new, max(1, counts.volume / begun), new + first_planes(network, patch))


def first_planes(network: Network, patch: Vec3) -> int:
    """Return the most planes that a sweep's first step keeps of the input.

    In a sliding network, it takes layers up to the first pooling, if these are computed again for
    each of its fragments.
    """
    axis = network.sweep_axis
    if network.is_tiled:
        stored = block_geometry(network, patch).frames[INPUT].stored
        return extent(stored.size, axis) - extent(patch, axis)
    planes = 0
    for layer in network.layers:
        planes += planes_kept(layer, axis)
        if isinstance(layer, Pool):
            break
    return planes


def swept_steps(
    segments: Sequence[Segment], storage: BlockStorage | None, axis: Axis
) -> tuple[SweptStep, ...]:
    """Return each step's part in a sweep.

    Args:
        segments: the segments of all layers.
        storage: the arrays of a block, if the network is tiled.
        axis: the axis of the sweep.
    """
    steps = [step for segment in segments for step in segment.steps]
    if storage:
        device = segments[0].device
        packed = packed_storages(steps, storage)
        return tuple(_in_block(step, storage, axis, device, packed) for step in steps)
    inputs = input_planes(segments, axis)
    return tuple(
        SweptStep(own.behind, after and _kept(after, step, axis))
        for step, own, after in zip(steps, inputs, (*inputs[1:], None), strict=True)
    )


def _in_block(
    step: Step, storage: BlockStorage, axis: Axis, device: DeviceKind, packed: Mapping[str, int]
) -> SweptStep:
    """Return the part of a tiled network's step in a sweep.

    Args:
        step: the step.
        storage: the arrays of a block.
        axis: the axis of the sweep.
        device: the device. On a GPU, the gaps between rows are kept with the planes.
        packed: the storages whose values are packed, with the parts of their numbers.
    """
    name, geometry = step.gives, storage.geometry
    behind, at = geometry.behind[name], storage.kept.get(name)
    if at is None:
        return SweptStep(behind)
    ahead = resized(ZERO, axis, extent(geometry.frames[name].computed.size, axis))
    shape = Shape5.of(storage.items, storage.maps[name], at.size)
    parts = packed.get(storage.locations[name].storage, 0)
    nbytes = array_bytes(shape, parts, has_gaps=has_own_memory(device) and axis != "x")
    return SweptStep(behind, KeptPlanes(1, shape, at, ahead, nbytes))


def _kept(after: InputPlanes, step: Step, axis: Axis) -> KeptPlanes | None:
    """Return the planes kept of a step's output, by those of the next step's input."""
    if after.shape is None:
        return None
    at = Box(ZERO, after.shape.size)
    ahead = resized(ZERO, axis, extent(step.shape_out, axis))
    return KeptPlanes(after.passes, after.shape, at, ahead, after.passes * after.shape.nbytes)


def input_planes(segments: Sequence[Segment], axis: Axis) -> tuple[InputPlanes, ...]:
    """Return the planes that a sweep keeps for each step of a sliding network.

    Layers that are computed again for each fragment of a pooling take all that they need from the
    planes that the first of them keeps.
    """
    kept: list[InputPlanes] = []
    strides: list[int] = []
    stride, count, batch, before = 1, 1, 1, list[tuple[Shape5, int]]()
    for segment in segments:
        count *= batch // segment.sub_batch * segment.shifts
        for step, planes in zip(segment.steps, _planes(segment, axis), strict=True):
            shape, passes = before[-1] if before else (None, 1)
            shape = resized(shape, axis, planes) if shape and planes else None
            kept.append(InputPlanes(planes, 0, passes, shape))
            strides.append(stride)
            before = [(step.shape_out, count)]
            stride *= extent(step.pool.window, axis) if step.pool else 1
        batch = segment.steps[-1].shape_out.n
    behind = 0
    for index in reversed(range(len(kept))):
        kept[index] = kept[index]._replace(behind=behind)
        behind += kept[index].planes * strides[index]
    return tuple(kept)


def _planes(segment: Segment, axis: Axis) -> Iterator[int]:
    """Yield the planes that each step of a segment keeps of its input."""
    planes = [sum(planes_kept(it, axis) for it in step.layers) for step in segment.steps]
    if segment.shifts > 1:
        again = 1 + next(
            index
            for index, step in enumerate(segment.steps)
            if step.pool and step.pools_plainly and step.pool.window.volume > 1
        )
        yield sum(planes[:again])
        yield from (0 for _ in planes[1:again])
        planes = planes[again:]
    yield from planes
