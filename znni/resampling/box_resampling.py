"""Resampling of boxes of a volume by splines, from the source values that each box needs.

The splines' weights come from ``core/spline_weights.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from znni.core.resampling import Resampling, X
from znni.core.shapes import FLOAT_BYTES, Box, Vec3, round_up
from znni.machine.arena import workspace
from znni.network.weights import Float32
from znni.primitives.cpu.common.numba_kernel import flat_view, output_view
from znni.primitives.cpu.common.streaming import LINE
from znni.primitives.cpu.common.workers import workers
from znni.resampling import kernels
from znni.resampling.linear_kernels import ROWS, group_floats, interpolate_groups
from znni.resampling.neighbours import neighbours

# The bytes that the values between two passes of a slab should have, to stay in a core's caches.
BETWEEN_BYTES = 4 * 2**20

# The fewest slices of a slab: with fewer, the first pass fetches the same values too often.
LEAST_SLICES = 8


def resample(
    values: Float32,
    at: Vec3,
    resampling: Resampling,
    box: Box,
    *,
    threads: int,
    bounds: Float32 | None = None,
    out: Float32 | None = None,
) -> Float32:
    """Return the values (f, z, y, x) of a box of the target.

    A voxel has the same value in every box.

    Args:
        values: values (f, z, y, x) of the source, at least in ``resampling.source_box(box)``.
        at: the source voxel of the first value.
        resampling: the change of voxels.
        box: the voxels of the target that are wanted.
        threads: the number of threads.
        bounds: the lowest and the highest value (f, 1, 2) of each map of the whole source. Values
            are clipped to them, as in scikit-image. If slices are resampled apart, each slice of
            the source has its own bounds (f, slices, 2). None: nothing is clipped.
        out: receives the values. Its rows have no gaps. Default: a new array.

    Raises:
        ValueError: the values do not cover the box's source.
    """
    values = values[:, *part_needed(values.shape[1:], at, resampling, box).slices]
    if out is None:
        out = np.empty((len(values), *box.size), np.float32)
    if _is_linear(resampling):  # values lie between source values, so nothing is clipped
        _interpolate(values, resampling, box, out, threads)
        return out
    pool, work = workers(threads), _BoxWork(resampling, box)
    scratch = workspace((threads, work.scratch_floats), np.float32)
    items = [(f, slab) for f in range(len(values)) for slab in work.slabs()]

    def task(worker: int, item: tuple[int, slice]) -> None:
        f, slab = item
        clipped = None if bounds is None else bounds[f]
        work.run(values[f], out[f], slab, clipped, scratch[worker])

    pool.for_each(task, items)
    return out


def resample_bytes(resampling: Resampling, box: Box, threads: int) -> int:
    """Return the bytes that ``resample`` takes for a box, beside its values and its output."""
    if _is_linear(resampling):
        return FLOAT_BYTES * threads * group_floats(resampling.source_box(box).size.x, box.size.x)
    return FLOAT_BYTES * threads * _BoxWork(resampling, box).scratch_floats


def _is_linear(resampling: Resampling) -> bool:
    """Return whether each target sample lies between two source samples along each axis."""
    return all(taps.taps == 2 for taps in resampling.taps)


def _interpolate(
    values: Float32, resampling: Resampling, box: Box, out: Float32, threads: int
) -> None:
    """Compute a box by linear interpolation along all axes at once."""
    along, (z, y, x), width = neighbours(resampling, box), box.size, values.shape[3]
    scratch = workspace((threads, group_floats(width, x)), np.float32)
    pool = workers(threads)

    def task(worker: int, groups: slice) -> None:
        interpolate_groups(
            *flat_view(values), *output_view(out), (z, y, x), width, groups.start, groups.stop,
            *along, scratch[worker],
        )  # fmt: skip

    pool.for_each(task, pool.shares(len(values) * z * -(-y // ROWS)))


class _BoxWork:
    """The work of a box of one map, in slabs that need no values from each other.

    Slabs lie along the axis of the first pass. So no value between two passes is computed twice.
    """

    def __init__(self, resampling: Resampling, box: Box) -> None:
        self._resampling, self._box = resampling, box
        self._source = resampling.source_box(box)
        self._passes = resampling.passes
        self._slabbed = self._passes[0]
        ends = zip(resampling.taps, *box, self._source.start, strict=True)
        self._sums = [
            (taps.first[start:stop] - origin, taps.weights[start:stop].astype(np.float32))
            for taps, start, stop, origin in ends
        ]
        size = list(self._source.size)
        size[self._slabbed] = 1
        first = Vec3(*size).volume
        size[self._passes[1]] = box.size[self._passes[1]]
        between = max(first, Vec3(*size).volume)  # floats between passes, for one slice
        self._between = round_up(between, LINE)
        extent = box.size[self._slabbed]
        slices = max(LEAST_SLICES, BETWEEN_BYTES // FLOAT_BYTES // self._between)
        self._slices = min(extent, slices)

    @property
    def scratch_floats(self) -> int:
        """The floats of scratch that a worker needs."""
        tiles = map(kernels.tile_floats, self._source.size, self._box.size)
        return round_up(2 * self._between * self._slices + max(tiles), LINE)

    def slabs(self) -> Iterator[slice]:
        """Yield the slices of each slab."""
        extent = self._box.size[self._slabbed]
        for start in range(0, extent, self._slices):
            yield slice(start, min(start + self._slices, extent))

    def run(
        self, values: Float32, out: Float32, slab: slice, bounds: Float32 | None, scratch: Float32
    ) -> None:
        """Compute a slab of a map's box."""
        current = values
        part: list[slice] = [slice(None)] * 3
        part[self._slabbed] = slab
        halves = np.split(scratch[: 2 * self._between * self._slices], 2)
        tile = scratch[2 * self._between * self._slices :]
        separate = self._resampling.separate
        for number, axis in enumerate(self._passes):
            first, weights = self._sums[axis]
            extents = list(current.shape)
            if axis == self._slabbed:
                first, weights = first[slab], weights[slab]
            extents[axis] = len(first)
            if number == len(self._passes) - 1:
                made = out[tuple(part)]
            else:
                made = halves[number][: Vec3(*extents).volume].reshape(extents)
            arrays = *flat_view(current), *output_view(made), tuple(extents)
            if axis == X:
                kernels.resample_along_x(*arrays, first, weights, tile)
            else:
                kernels.resample_rows(*arrays, axis, first, weights, tile)
            current = made
            if bounds is not None and number == (2 if separate is None else 1):
                self._clip(current, bounds)

    def _clip(self, made: Float32, bounds: Float32) -> None:
        """Clip the values of a slab."""
        axis = self._resampling.separate
        if axis is None:
            along, bounds = 0, np.repeat(bounds, len(made), axis=0)
        else:
            along, start = axis, self._source.start[axis]
            bounds = bounds[start : start + made.shape[axis]]
        kernels.clip(*output_view(made), made.shape, along, np.ascontiguousarray(bounds))


def part_needed(size: tuple[int, ...], at: Vec3, resampling: Resampling, box: Box) -> Box:
    """Return the part of the given values from which a box is computed."""
    needed, there = resampling.source_box(box), Box(at, at + Vec3(*size))
    if not needed.within(there):
        raise ValueError(f"box {box} needs the source's {needed}, and was given {there}")
    return Box(needed.start - at, needed.stop - at)


def bounds_of(values: Float32, separate: int | None = None) -> Float32:
    """Return the bounds of a whole source, as ``resample`` takes them."""
    axes = tuple(axis for axis in (1, 2, 3) if separate is None or axis != separate + 1)
    lowest, highest = values.min(axis=axes), values.max(axis=axes)
    return np.stack([lowest, highest], axis=-1).reshape(len(values), -1, 2)
