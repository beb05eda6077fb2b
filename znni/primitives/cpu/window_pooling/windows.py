"""The loops of pooling at any stride: windows are reduced over z and y, then along x."""

from __future__ import annotations

import numpy as np

from znni.primitives.cpu.common.numba_kernel import larger, numba_kernel
from znni.primitives.cpu.common.rows import fetch_rows, put_rows
from znni.primitives.cpu.common.strided import take_every


@numba_kernel
def pool_planes(  # type: ignore[no-untyped-def]
    memory, start, strides, target, target_start, target_strides, out, width, window, step,
    dilation, within, is_max, first, stop, rows, streamed,
):  # fmt: skip
    """Pool the planes (n, f, z) of the output with these numbers.

    Args:
        memory: the memory of the input.
        start: the place of its first element.
        strides: the elements from one index to the next.
        target: the memory of the output.
        target_start: the place of its first element.
        target_strides: the elements from one index to the next.
        out: the shape of the output.
        width: the samples of an input row.
        window: the extents of the window.
        step: the samples between neighbouring windows.
        dilation: the samples between neighbours in a window.
        within: the first sample of the volume along each axis, and those after the last.
        is_max: whether to take maxima of the samples within, else averages of all.
        first: the number of the first plane.
        stop: the number of the plane after the last.
        rows: scratch for a row of the input, one of the output, and some more of the output.
        streamed: whether the output goes past the caches.
    """
    reduced, taken, made = rows[:width], rows[width : width + out[4]], rows[width + out[4] :]
    most = made.size // out[4]
    lowest = np.float32(-np.inf) if is_max else np.float32(0)
    share = np.float32(1) / np.float32(window[0] * window[1] * window[2])
    seen = reduced[within[2] : within[5]]
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
                reduced[:] = lowest
                for dz in range(window[0]):
                    at_z = z * step[0] + dz * dilation[0]
                    for dy in range(window[1]):
                        at_y = (top + i) * step[1] + dy * dilation[1]
                        at = image + at_z * strides[2] + at_y * strides[3]
                        if not is_max:
                            _add(memory[at:], reduced)
                        elif within[0] <= at_z < within[3] and within[1] <= at_y < within[4]:
                            _enlarge(memory[at + within[2] :], seen)
                row[:] = lowest
                for dx in range(window[2]):
                    take_every(step[2], reduced[dx * dilation[2] :], taken, out[4])
                    if is_max:
                        _enlarge(taken, row)
                    else:
                        _add(taken, row)
                if not is_max:
                    for x in range(row.size):
                        row[x] *= share
            put_rows(made, count, out[4], target, row_at, target_strides[3], streamed)


@numba_kernel
def _add(source, total):  # type: ignore[no-untyped-def]
    """Add a row to sums."""
    for x in range(total.size):
        total[x] += source[x]


@numba_kernel
def _enlarge(source, largest):  # type: ignore[no-untyped-def]
    """Replace the largest values so far by those of a row that are larger."""
    for x in range(largest.size):
        largest[x] = larger(largest[x], source[x])
