"""Maxima over pooling windows, row by row, for plain pooling and for fragments alike.

A maximum starts from its window's first voxel, and a NaN anywhere in a window is its maximum,
as with ``numpy.maximum``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from znni.primitives.cpu.common.even_slices import even_slices
from znni.primitives.cpu.common.flat_view import flat_view
from znni.primitives.cpu.common.workers import Workers
from znni.shapes import Shape5, Vec3
from znni.weights import Float32

# Input that a thread takes on at a time: enough to hide the cost of handing it out.
TASK_BYTES = 512 * 1024


def scratch_nbytes(shape: Shape5, window: Vec3, threads: int) -> int:
    """Bytes that the threads work in: two planes of maxima each."""
    return 4 * (2 * shape.y - window.y + 1) * shape.x * threads


def window_maxima(
    x: Float32, y: Float32, window: Vec3, fragments_per_axis: Vec3, pool: Workers
) -> None:
    """Pool ``x`` (n, f, z, y, x), with stride = window, into ``y`` (n * fragments, f, z, y, x).

    Fragment (oz, oy, ox) starts at that offset; there are ``fragments_per_axis`` of them, in
    C order, after one another for each n.
    """
    view = flat_view(x)
    fragments = y.reshape(x.shape[0], *fragments_per_axis, *y.shape[1:])
    planes = x.shape[0] * y.shape[1] * y.shape[2]

    def task(_worker: int, part: slice) -> None:
        _pool_planes(*view, fragments, tuple(window), x.shape[3:], part.start, part.stop)

    pool.for_each(task, even_slices(planes, max(pool.threads, x.nbytes // TASK_BYTES)))


@njit(nogil=True, cache=True, inline="always")
def _larger(a, b):  # type: ignore[no-untyped-def]
    return a if a >= b or a != a else b  # noqa: PLR0124 - only a NaN differs from itself


@njit(nogil=True, cache=True)
def _slide(source, at, step, extent, target):  # type: ignore[no-untyped-def]
    """``target[i]`` = the maximum of ``extent`` elements, ``step`` apart, from ``at + i``."""
    first = source[at:]
    if extent == 1:
        for i in range(target.size):
            target[i] = first[i]
        return
    second = source[at + step :]
    for i in range(target.size):
        target[i] = _larger(first[i], second[i])
    for d in range(2, extent):
        other = source[at + d * step :]
        for i in range(target.size):
            target[i] = _larger(target[i], other[i])


@njit(nogil=True, cache=True)
def _stride(plane, width, down, across, result):  # type: ignore[no-untyped-def]
    """Take every ``down``-th row and the maximum of every ``across`` elements along it."""
    for y in range(result.shape[0]):
        row = plane[y * down * width :]
        for x in range(result.shape[1]):
            largest = row[x * across]
            for dx in range(1, across):
                largest = _larger(largest, row[x * across + dx])
            result[y, x] = largest


@njit(nogil=True, cache=True)
def _pool_planes(memory, start, strides, fragments, window, size, first, stop):  # type: ignore[no-untyped-def]
    """Pool the output planes (n, f, z) with these indices, of all fragments."""
    _, count_z, count_y, count_x, features, out_z, _, _ = fragments.shape
    height, width = size
    over_z = np.empty(height * width, np.float32)
    over_zy = np.empty((height - window[1] + 1) * width, np.float32)
    for index in range(first, stop):
        rest, z = divmod(index, out_z)
        n, f = divmod(rest, features)
        for oz in range(count_z):
            at = start + n * strides[0] + f * strides[1] + (z * window[0] + oz) * strides[2]
            if strides[3] == width:
                _slide(memory, at, strides[2], window[0], over_z)
            else:
                for y in range(height):
                    row = over_z[y * width : (y + 1) * width]
                    _slide(memory, at + y * strides[3], strides[2], window[0], row)
            _slide(over_z, 0, width, window[1], over_zy)
            for oy in range(count_y):
                for ox in range(count_x):
                    corner = over_zy[oy * width + ox :]
                    result = fragments[n, oz, oy, ox, f, z]
                    # Constant strides of the usual windows let the compiler vectorise.
                    if window[2] == 1:
                        _stride(corner, width, window[1], 1, result)
                    elif window[2] == 2:
                        _stride(corner, width, window[1], 2, result)
                    elif window[2] == 3:
                        _stride(corner, width, window[1], 3, result)
                    else:
                        _stride(corner, width, window[1], window[2], result)
