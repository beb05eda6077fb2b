"""Boxes of a resampled volume, each computed from the source values that it needs."""

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

    They are the same numbers in whatever box they are computed.

    Args:
        values: values (f, z, y, x) of the source: those of ``resampling.source_box(box)`` at least.
        at: the source voxel of the first of them.
        resampling: the change of voxels.
        box: the voxels of the target that are wanted.
        threads: the threads that compute them.
        bounds: the lowest and the highest value (f, 1, 2) of each map of the whole source. Values
            are clipped to them, as scikit-image does. If slices are resampled apart, they are
            those (f, slices, 2) of each of the source's slices. None: nothing is clipped.
        out: takes the values, with rows without gaps. Default: a new array.

    Raises:
        ValueError: the values do not cover the box's source.
    """
    check_covered(values.shape[1:], at, resampling, box)
    if out is None:
        out = np.empty((len(values), *box.size), np.float32)
    pool, work = workers(threads), _BoxWork(resampling, box)
    scratch = workspace((threads, work.scratch_floats), np.float32)
    items = [(f, slab) for f in range(len(values)) for slab in work.slabs()]

    def task(worker: int, item: tuple[int, slice]) -> None:
        f, slab = item
        clipped = None if bounds is None else bounds[f]
        work.run(values[f], at, out[f], slab, clipped, scratch[worker])

    pool.for_each(task, items)
    return out


def resample_bytes(resampling: Resampling, box: Box, threads: int) -> int:
    """Return the bytes that ``resample`` takes for a box, beside its values and its output."""
    return FLOAT_BYTES * threads * _BoxWork(resampling, box).scratch_floats


class _BoxWork:
    """The work of a box of one map, in slabs that need no values of each other.

    Slabs lie along the axis of the first pass. So no value between two passes is computed twice.

    Args:
        resampling: the change of voxels.
        box: the voxels of the target that are wanted.
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
        """Return the slices of each slab."""
        extent = self._box.size[self._slabbed]
        for start in range(0, extent, self._slices):
            yield slice(start, min(start + self._slices, extent))

    def run(
        self,
        values: Float32,
        at: Vec3,
        out: Float32,
        slab: slice,
        bounds: Float32 | None,
        scratch: Float32,
    ) -> None:
        """Compute a slab of a map's box.

        Args:
            values: values (z, y, x) of the source.
            at: the source voxel of the first of them.
            out: takes the values of the box.
            slab: the slices to compute.
            bounds: what values are clipped to, as ``resample`` has them.
            scratch: the worker's scratch.
        """
        there = Box(self._source.start - at, self._source.stop - at)
        current = values[there.slices]
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


def check_covered(size: tuple[int, ...], at: Vec3, resampling: Resampling, box: Box) -> None:
    """Check that values cover the source of a box.

    Args:
        size: the extents (z, y, x) of the values.
        at: the source voxel of the first of them.
        resampling: the change of voxels.
        box: the voxels of the target.

    Raises:
        ValueError: they do not.
    """
    needed = resampling.source_box(box)
    there = Box(at, at + Vec3(*size))
    if not needed.within(there):
        raise ValueError(f"box {box} needs the source's {needed}, and was given {there}")


def bounds_of(values: Float32, separate: int | None = None) -> Float32:
    """Return the bounds of a whole source, as ``resample`` takes them.

    Args:
        values: all values (f, z, y, x) of the source.
        separate: the axis whose slices are resampled apart, if there is one.
    """
    axes = tuple(axis for axis in (1, 2, 3) if separate is None or axis != separate + 1)
    lowest, highest = values.min(axis=axes), values.max(axis=axes)
    return np.stack([lowest, highest], axis=-1).reshape(len(values), -1, 2)
