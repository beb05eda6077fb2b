"""Sweeps: the planes that each step keeps from one block of a column to the next.

Blocks of a column follow one another along an axis, and planes are those across it. The input of
each step is an array with some planes that are kept, and new ones behind them. So a step computes
only new planes, and no plane twice. A convolution of extent ``k`` keeps ``k - 1`` planes, and a
pooling one less than its window.

The first block of a column finds no kept planes. So its steps first run for these planes. This also
happens after a block that was not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from znni.core.shapes import Axis, Box, Shape5, Vec3, extent, resized
from znni.network.layers import Layer, Pool
from znni.network.network import Network
from znni.plans.segments import Segment
from znni.plans.totals import Number


class Swept(NamedTuple):
    """The planes of a block and of a column.

    Attributes:
        axis: the axis of the column.
        new: the output planes of a block.
        column: the output planes of a job, which a column has.
        taken: the most planes of the input that layers take at a time.
    """

    axis: Axis
    new: int
    column: int
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
        return runs_for_block(behind, self.new, self.column)


def runs_for_block(behind: int, new: Number, column: int) -> Number:
    """Return how often a step runs for a block, on average over a column.

    Args:
        behind: the planes before the block's that later steps need of its output.
        new: the output planes of a block, or of each of several kinds of blocks.
        column: the output planes of a column.
    """
    return 1 + -(-behind // new) / -(-column // new)


class KeptPlanes(NamedTuple):
    """The planes that a sweep keeps for a step.

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

    @property
    def nbytes(self) -> int:
        """The bytes of the kept planes, for all passes."""
        return self.passes * self.shape.nbytes if self.shape else 0


def planes_kept(layer: Layer, axis: Axis) -> int:
    """Return the planes of its input that a layer of a sliding network keeps in a sweep."""
    return extent(layer.reads(Box(Vec3(0, 0, 0), Vec3(1, 1, 1))).size, axis) - 1


def swept_for(network: Network, patch: Vec3, output: Vec3) -> Swept | None:
    """Return the planes of a sweep in blocks of a size; None if the network is not swept."""
    if (axis := network.swept_along) is None:
        return None
    new = extent(patch, axis)
    return Swept(axis, new, extent(output, axis), new + first_planes(network, axis))


def first_planes(network: Network, axis: Axis) -> int:
    """Return the most planes that a sweep's first step keeps of the input.

    It takes layers up to the first pooling, if these are computed again for each of its fragments.
    """
    planes = 0
    for layer in network.layers:
        planes += planes_kept(layer, axis)
        if isinstance(layer, Pool):
            break
    return planes


def kept_by(segments: Sequence[Segment], axis: Axis) -> tuple[KeptPlanes, ...]:
    """Return the planes that a sweep keeps for each step.

    Layers that are computed again for each fragment of a pooling take all that they need from the
    planes that the first of them keeps.
    """
    kept: list[KeptPlanes] = []
    strides: list[int] = []
    stride, count, batch, before = 1, 1, 1, list[tuple[Shape5, int]]()
    for segment in segments:
        count *= batch // segment.sub_batch * segment.shifts
        for step, planes in zip(segment.steps, _planes(segment, axis), strict=True):
            shape, passes = before[-1] if before else (None, 1)
            shape = resized(shape, axis, planes) if shape and planes else None
            kept.append(KeptPlanes(planes, 0, passes, shape))
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
