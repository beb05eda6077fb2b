"""Weighted sums of arrays on the workers: a window's output is added to what others gave.

Each value takes one multiply-add, in place and without temporary arrays. So the sum of a voxel
depends on the order of its windows only, and never on threads or blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from znni.network.weights import Float32
from znni.primitives.cpu.common.numba_kernel import flat_view, numba_kernel, output_view
from znni.primitives.cpu.common.workers import Workers

# Fewest bytes of sums in a worker's task: enough to hide the cost of handing it out.
TASK_BYTES = 512 * 1024


def add_weighted(sums: Float32, values: Float32, weights: Float32, pool: Workers) -> None:
    """Add values times weights to sums, in place.

    Args:
        sums: the sums (f, z, y, x), whose rows are contiguous.
        values: what is added, of the same shape. Any axis may run backwards, as of a view that is
            flipped.
        weights: the weights (z, y, x) of each map's values; rows are contiguous.
        pool: the workers that share the planes.
    """
    views = *output_view(sums), *flat_view(values), *flat_view(weights)

    def task(_worker: int, part: slice) -> None:
        _add_planes(*views, sums.shape, part.start, part.stop)

    _over_planes(sums, task, pool)


def divide_maps(sums: Float32, by: Float32, pool: Workers) -> None:
    """Divide the sums (f, z, y, x) of each map by the same numbers (z, y, x), in place."""
    views = *output_view(sums), *flat_view(by)

    def task(_worker: int, part: slice) -> None:
        _divide_planes(*views, sums.shape, part.start, part.stop)

    _over_planes(sums, task, pool)


def _over_planes(values: Float32, task: Callable[[int, slice], None], pool: Workers) -> None:
    f, z, _, _ = values.shape
    pool.for_each(task, pool.shares(f * z, values.nbytes // TASK_BYTES))


@numba_kernel
def _add_planes(  # type: ignore[no-untyped-def]
    memory, start, strides, added, added_start, added_strides, weights, weights_start,
    weights_strides, extents, first, stop,
):  # fmt: skip
    length, backwards = extents[3], added_strides[3] < 0
    for plane in range(first, stop):
        f, z = divmod(plane, extents[1])
        for y in range(extents[2]):
            at = start + f * strides[0] + z * strides[1] + y * strides[2]
            source = added_start + f * added_strides[0] + z * added_strides[1]
            source += y * added_strides[2]
            weight = weights_start + z * weights_strides[0] + y * weights_strides[1]
            sums, counts = memory[at : at + length], weights[weight : weight + length]
            if backwards:
                given = added[source + 1 - length : source + 1]
                for x in range(length):
                    # An unsigned index cannot count from the end, so the loop becomes vectors.
                    sums[x] += given[np.uint64(length - 1) - np.uint64(x)] * counts[x]
            else:
                given = added[source : source + length]
                for x in range(length):
                    sums[x] += given[x] * counts[x]


@numba_kernel
def _divide_planes(  # type: ignore[no-untyped-def]
    memory, start, strides, by, by_start, by_strides, extents, first, stop
):
    length = extents[3]
    for plane in range(first, stop):
        f, z = divmod(plane, extents[1])
        for y in range(extents[2]):
            at = start + f * strides[0] + z * strides[1] + y * strides[2]
            other = by_start + z * by_strides[0] + y * by_strides[1]
            sums, divisors = memory[at : at + length], by[other : other + length]
            for x in range(length):
                sums[x] /= divisors[x]
