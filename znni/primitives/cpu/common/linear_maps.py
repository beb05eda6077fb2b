"""Maps that are linear functions of other maps at each voxel, and the label of the largest one.

Rows are computed in pieces of one length, the last one beside padding. So each value comes from the
same instructions, wherever it lies. The maps of a piece stay in a core's cache. If only the largest
counts, they are never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.network.weights import Float32
from znni.primitives.cpu.common.lazy_kernel import lazy_njit
from znni.primitives.cpu.common.numba_kernel import flat_view, numba_kernel, output_view
from znni.primitives.cpu.common.workers import Workers

PIECE = 256  # values of a row that are computed together
ROWS = 16  # rows in a worker's task
STEP = 4  # maps that are added at once; zeros fill the last step


def linear_maps(
    values: Float32, weight: Float32, bias: Float32, into: Float32, pool: Workers
) -> None:
    """Compute ``weight @ values + bias`` at each voxel.

    Args:
        values: the maps (f, z, y, x); rows are contiguous.
        weight: the factors (f', f).
        bias: the offsets (f',).
        into: an array (f', z, y, x) for the result; rows are contiguous.
        pool: the workers that share the rows.
    """
    scratch, weight = _scratch(values, pool, 1), _padded(weight)
    views = *flat_view(values), *output_view(into)

    def task(worker: int, rows: slice) -> None:
        _maps(*views, weight, bias, scratch[worker], values.shape, rows.start, rows.stop)

    _over_rows(values, task, pool)


def largest_maps(
    values: Float32, weight: Float32, bias: Float32, into: NDArray[Any], pool: Workers
) -> None:
    """Find the map of ``weight @ values + bias`` that is the largest at each voxel.

    Args:
        values: the maps (f, z, y, x); rows are contiguous.
        weight: the factors (f', f).
        bias: the offsets (f',).
        into: an array (z, y, x) of int32 for the number of the map, contiguous. If several
            maps are equally large, the first one counts.
        pool: the workers that share the rows.
    """
    scratch, weight = _scratch(values, pool, 2), _padded(weight)
    numbers = np.zeros((pool.threads, PIECE), np.int32)
    view, found = flat_view(values), into.reshape(-1)

    def task(worker: int, rows: slice) -> None:
        _largest(
            *view, found, weight, bias, scratch[worker], numbers[worker], values.shape,
            rows.start, rows.stop,
        )  # fmt: skip

    _over_rows(values, task, pool)


def _scratch(values: Float32, pool: Workers, more: int) -> Float32:
    return np.zeros((pool.threads, _steps(len(values)) * STEP + more, PIECE), np.float32)


def _steps(maps: int) -> int:
    return -(-maps // STEP)


def _padded(weight: Float32) -> Float32:
    """Return the factors with zeros for the maps that fill the last step."""
    more = _steps(weight.shape[1]) * STEP - weight.shape[1]
    return np.pad(weight, ((0, 0), (0, more)))


def _over_rows(values: Float32, task: Callable[[int, slice], None], pool: Workers) -> None:
    rows = values.shape[1] * values.shape[2]
    pool.for_each(task, pool.shares(rows, rows // ROWS))


@lazy_njit(nogil=True, inline="always")
def _gather(scratch, memory, at, stride, maps, count):  # type: ignore[no-untyped-def]
    """Copy some values of each map, whose first lie a stride apart."""
    for f in range(maps):
        source, kept = memory[at + f * stride :], scratch[f]
        for i in range(count):
            kept[i] = source[i]


@lazy_njit(nogil=True, inline="always")
def _sum(sums, weight, bias, given, maps):  # type: ignore[no-untyped-def]
    """Set sums to the weighted sum of pieces of maps; those of a step are added at once."""
    for i in range(PIECE):
        sums[i] = bias
    for f in range(0, maps, STEP):
        a, b, c, d = weight[f], weight[f + 1], weight[f + 2], weight[f + 3]
        first, second, third, fourth = given[f], given[f + 1], given[f + 2], given[f + 3]
        for i in range(PIECE):
            sums[i] += (a * first[i] + b * second[i]) + (c * third[i] + d * fourth[i])


@numba_kernel
def _maps(  # type: ignore[no-untyped-def]
    memory, start, strides, made, made_start, made_strides, weight, bias, scratch, extents, first,
    stop,
):  # fmt: skip
    features, length = extents[0], extents[3]
    padded = weight.shape[1]
    sums = scratch[padded]
    for row in range(first, stop):
        z, y = divmod(row, extents[2])
        for x in range(0, length, PIECE):
            count = min(PIECE, length - x)
            at = start + z * strides[1] + y * strides[2] + x
            _gather(scratch, memory, at, strides[0], features, count)
            at = made_start + z * made_strides[1] + y * made_strides[2] + x
            for m in range(len(bias)):
                _sum(sums, weight[m], bias[m], scratch, padded)
                target = made[at + m * made_strides[0] :]
                for i in range(count):
                    target[i] = sums[i]


@numba_kernel
def _largest(  # type: ignore[no-untyped-def]
    memory, start, strides, found, weight, bias, scratch, numbers, extents, first, stop
):
    features, length = extents[0], extents[3]
    padded = weight.shape[1]
    sums, most = scratch[padded], scratch[padded + 1]
    for row in range(first, stop):
        z, y = divmod(row, extents[2])
        for x in range(0, length, PIECE):
            count = min(PIECE, length - x)
            at = start + z * strides[1] + y * strides[2] + x
            _gather(scratch, memory, at, strides[0], features, count)
            for m in range(len(bias)):
                _sum(sums, weight[m], bias[m], scratch, padded)
                if m == 0:
                    for i in range(PIECE):
                        most[i] = sums[i]
                        numbers[i] = 0
                else:
                    number = np.int32(m)
                    for i in range(PIECE):
                        larger = sums[i] > most[i]
                        most[i] = sums[i] if larger else most[i]
                        numbers[i] = number if larger else numbers[i]
            labels = found[row * length + x :]
            for i in range(count):
                labels[i] = numbers[i]
