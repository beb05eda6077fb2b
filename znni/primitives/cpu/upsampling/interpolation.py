"""The loops of upsampling: planes of output, a few rows at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.network.weights import Float32
from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.primitives.cpu.common.rows import fetch_rows, put_rows


class Neighbours(NamedTuple):
    """The samples of the input on both sides of each sample of the output, along one axis.

    Attributes:
        left: the index of the sample before.
        right: the index of the sample after.
        share: the share of the sample after in the interpolated value.
    """

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    share: Float32


def neighbours(factor: int, size: int, start: int, stop: int) -> Neighbours:
    """Return the neighbours along an axis; the nearest ones inside stand for those outside.

    Args:
        factor: the samples of the output for each sample of the input.
        size: the samples of the input. If it is refined, one on each side is context.
        start: the first sample inside.
        stop: the sample after the last one inside.
    """
    context = int(factor > 1)
    place = (np.arange((size - 2 * context) * factor) + 0.5) / factor - 0.5 + context
    left = np.floor(place).astype(np.int64)
    share = place - left
    right = np.ceil(place).astype(np.int64).clip(start, stop - 1)
    left = left.clip(start, stop - 1)
    share[left == right] = 0.5  # of the same value: a share of 0 would make infinity NaN
    return Neighbours(left, right, share.astype(np.float32))


@numba_kernel
def repeat_planes(  # type: ignore[no-untyped-def]
    memory, start, strides, target, target_start, target_strides, out, factor, first, stop, rows,
    streamed,
):  # fmt: skip
    """Repeat samples for the planes (n, f, z) of the output with these numbers."""
    width = out[4] // factor[2]
    most = rows.size // out[4]
    for plane in range(first, stop):
        rest, z = divmod(plane, out[2])
        n, f = divmod(rest, out[1])
        at = start + n * strides[0] + f * strides[1] + z // factor[0] * strides[2]
        to = target_start + n * target_strides[0] + f * target_strides[1] + z * target_strides[2]
        for top in range(0, out[3], most):
            count = min(most, out[3] - top)
            row_at = to + top * target_strides[3]
            fetch_rows(count, out[4], target, row_at, target_strides[3])
            for y in range(count):
                source = memory[at + (top + y) // factor[1] * strides[3] :]
                _repeat(source, width, factor[2], rows[y * out[4] :])
            put_rows(rows, count, out[4], target, row_at, target_strides[3], streamed)


@numba_kernel
def _repeat(source, width, factor, row):  # type: ignore[no-untyped-def]
    """Repeat the samples of a row."""
    if factor == 1:
        for x in range(width):
            row[x] = source[x]
    elif factor == 2:
        for x in range(width):
            row[2 * x] = source[x]
            row[2 * x + 1] = source[x]
    else:
        for x in range(width):
            for i in range(factor):
                row[factor * x + i] = source[x]


@numba_kernel
def interpolate_planes(  # type: ignore[no-untyped-def]
    memory, start, strides, target, target_start, target_strides, out, width, first, stop, along_z,
    along_y, factor, inside_start, inside_stop, rows, streamed,
):  # fmt: skip
    """Interpolate for the planes (n, f, z) of the output with these numbers.

    Args:
        memory: the memory of the input.
        start: the place of its first element.
        strides: the elements from one index to the next.
        target: the memory of the output.
        target_start: the place of its first element.
        target_strides: the elements from one index to the next.
        out: the shape of the output.
        width: the samples of an input row.
        first: the number of the first plane.
        stop: the number of the plane after the last.
        along_z: the ``Neighbours`` along z.
        along_y: the ``Neighbours`` along y.
        factor: the samples of an output row for each of an input row.
        inside_start: the first sample of an input row inside.
        inside_stop: the sample after the last one inside.
        rows: scratch for a row of the input and some of the output.
        streamed: whether the output goes past the caches.
    """
    mixed, made = rows[:width], rows[width:]
    most = made.size // out[4]
    for plane in range(first, stop):
        rest, z = divmod(plane, out[2])
        n, f = divmod(rest, out[1])
        image = start + n * strides[0] + f * strides[1]
        above = image + along_z[0][z] * strides[2]
        below = image + along_z[1][z] * strides[2]
        share_z = along_z[2][z]
        to = target_start + n * target_strides[0] + f * target_strides[1] + z * target_strides[2]
        for top in range(0, out[3], most):
            count = min(most, out[3] - top)
            row_at = to + top * target_strides[3]
            fetch_rows(count, out[4], target, row_at, target_strides[3])
            for i in range(count):
                near = along_y[0][top + i] * strides[3]
                far = along_y[1][top + i] * strides[3]
                share_y = along_y[2][top + i]
                rest_y, rest_z = np.float32(1) - share_y, np.float32(1) - share_z
                a, b = memory[above + near :], memory[above + far :]
                c, d = memory[below + near :], memory[below + far :]
                for x in range(width):
                    upper = rest_y * a[x] + share_y * b[x]
                    lower = rest_y * c[x] + share_y * d[x]
                    mixed[x] = rest_z * upper + share_z * lower
                for x in range(inside_start):
                    mixed[x] = mixed[inside_start]
                for x in range(inside_stop, width):
                    mixed[x] = mixed[inside_stop - 1]
                _refine(mixed, factor, made[i * out[4] : (i + 1) * out[4]])
            put_rows(made, count, out[4], target, row_at, target_strides[3], streamed)


@numba_kernel
def _refine(source, factor, row):  # type: ignore[no-untyped-def]
    """Interpolate a row; the input's row has one sample more on each side, if it is refined."""
    quarter, one = np.float32(0.25), np.float32(1)
    if factor == 1:
        for x in range(row.size):
            row[x] = source[x]
    elif factor == 2:
        for x in range(row.size // 2):
            here = (one - quarter) * source[x + 1]
            row[2 * x] = quarter * source[x] + here
            row[2 * x + 1] = here + quarter * source[x + 2]
    else:
        for i in range(factor):
            place = (np.float32(i) + np.float32(0.5)) / np.float32(factor) + np.float32(0.5)
            left = int(place)
            share = place - np.float32(left)
            share = share if share > 0 else np.float32(0.5)
            near, far = source[left:], source[math.ceil(place) :]
            for x in range(row.size // factor):
                row[factor * x + i] = (one - share) * near[x] + share * far[x]
