"""The loops of pooling at any stride: windows are reduced over z and y, then along x."""

from __future__ import annotations

import numpy as np

from znni.primitives.cpu.common.numba_kernel import larger, numba_kernel
from znni.primitives.cpu.common.rows import fetch_rows, put_rows


@numba_kernel
def pool_planes(  # type: ignore[no-untyped-def]
    memory, start, strides, target, target_start, target_strides, out, width, window, step, within,
    is_max, first, stop, rows, streamed,
):  # fmt: skip
    """Pool the planes (n, f, z) of the output with these numbers.

    Args:
        memory: the input, with ``start`` and ``strides``; its rows have ``width`` samples.
        target: the output, with ``target_start`` and ``target_strides``.
        out: the shape of the output.
        window: the extents of the window.
        step: the samples between neighbouring windows.
        within: the first sample of the volume along each axis, and those after the last.
        is_max: whether to take maxima of the samples within, else averages of all.
        first: the number of the first plane.
        stop: the number of the plane after the last.
        rows: scratch for a row of the input and some of the output.
        streamed: whether the output goes past the caches.
    """
    reduced, made = rows[:width], rows[width:]
    most = made.size // out[4]
    lowest = np.float32(-np.inf)
    share = np.float32(1) / np.float32(window[0] * window[1] * window[2])
    for plane in range(first, stop):
        rest, z = divmod(plane, out[2])
        n, f = divmod(rest, out[1])
        image = start + n * strides[0] + f * strides[1]
        to = target_start + n * target_strides[0] + f * target_strides[1] + z * target_strides[2]
        for top in range(0, out[3], most):
            count = min(most, out[3] - top)
            row_at = to + top * target_strides[3]
            fetch_rows(count, out[4], target, row_at, target_strides[3])
            for i in range(count):
                row = made[i * out[4] : (i + 1) * out[4]]
                reduced[:] = lowest if is_max else np.float32(0)
                for dz in range(window[0]):
                    at_z = z * step[0] + dz
                    for dy in range(window[1]):
                        at_y = (top + i) * step[1] + dy
                        source = memory[image + at_z * strides[2] + at_y * strides[3] :]
                        if not is_max:
                            for x in range(width):
                                reduced[x] += source[x]
                        elif within[0] <= at_z < within[3] and within[1] <= at_y < within[4]:
                            for x in range(within[2], within[5]):
                                reduced[x] = larger(reduced[x], source[x])
                row[:] = lowest if is_max else np.float32(0)
                for dx in range(window[2]):
                    _reduce(reduced[dx:], step[2], is_max, row)
                if not is_max:
                    for x in range(row.size):
                        row[x] *= share
            put_rows(made, count, out[4], target, row_at, target_strides[3], streamed)


@numba_kernel
def _reduce(source, step, is_max, row):  # type: ignore[no-untyped-def]
    """Add every ``step``-th sample of a row to the results, or take the larger ones."""
    if is_max:
        if step == 2:
            for x in range(row.size):
                row[x] = larger(row[x], source[2 * x])
        else:
            for x in range(row.size):
                row[x] = larger(row[x], source[step * x])
    elif step == 2:
        for x in range(row.size):
            row[x] += source[2 * x]
    else:
        for x in range(row.size):
            row[x] += source[step * x]
