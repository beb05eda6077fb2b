"""The loops of resampling: one axis of a map (z, y, x) at a time.

Long sums go over tiles: a few columns of all source samples, end to end. So their rows lie in the
nearest cache, whatever their distance in the volume is.
"""

from __future__ import annotations

from znni.primitives.cpu.common.lazy_kernel import lazy_njit
from znni.primitives.cpu.common.numba_kernel import numba_kernel

COLUMNS = 256  # of a tile along z or y
LANES = 32  # rows that are resampled together along x


def tile_floats(samples: int, made: int) -> int:
    """Return the floats of a tile for a pass along any axis.

    Args:
        samples: the source samples along the axis.
        made: the target samples.
    """
    return max(COLUMNS * samples, LANES * (samples + made))


@numba_kernel
def resample_rows(  # type: ignore[no-untyped-def]
    memory, start, strides, target, target_start, target_strides, extents, along, first, weights,
    tile,
):  # fmt: skip
    """Resample along z or y.

    Args:
        memory: the memory of the source.
        start: the place of its first element.
        strides: the elements from one index to the next.
        target: the memory of the target.
        target_start: the place of its first element.
        target_strides: the elements from one index to the next.
        extents: the extents of the target.
        along: the axis, 0 or 1.
        first: the first source sample of each target sample.
        weights: the weights (target, taps).
        tile: scratch for ``COLUMNS`` of all source samples.
    """
    across, taps, width = 1 - along, weights.shape[1], extents[2]
    step, to_step = strides[along], target_strides[along]
    for other in range(extents[across]):
        at = start + other * strides[across]
        to = target_start + other * target_strides[across]
        if taps <= 2:
            for o in range(extents[along]):
                source = memory[at + first[o] * step :]
                made = target[to + o * to_step : to + o * to_step + width]
                if taps == 1:
                    _copy(source, made)
                else:
                    _mix(source, memory[at + (first[o] + 1) * step :], weights[o], made)
        else:
            begin = first[0]
            samples = first[extents[along] - 1] + taps - begin
            for x in range(0, width, COLUMNS):
                count = min(COLUMNS, width - x)
                for i in range(samples):
                    _copy(memory[at + (begin + i) * step + x :], tile[i * COLUMNS :][:count])
                for o in range(extents[along]):
                    rows = tile[(first[o] - begin) * COLUMNS :]
                    _sum_rows(rows, COLUMNS, weights[o], target[to + o * to_step + x :][:count])


@numba_kernel
def resample_along_x(  # type: ignore[no-untyped-def]
    memory, start, strides, target, target_start, target_strides, extents, first, weights, tile
):  # fmt: skip
    """Resample along x. The arguments are those of ``resample_rows``, but for the axis."""
    taps, width, total = weights.shape[1], extents[2], extents[0] * extents[1]
    if taps <= 2:
        for row in range(total):
            z, y = divmod(row, extents[1])
            source = memory[start + z * strides[0] + y * strides[1] :]
            to = target_start + z * target_strides[0] + y * target_strides[1]
            _gather(source, first, weights, target[to : to + width])
        return
    begin = first[0]
    samples = first[width - 1] + taps - begin
    made = tile[samples * LANES :]
    for top in range(0, total, LANES):
        count = min(LANES, total - top)
        for lane in range(count):
            z, y = divmod(top + lane, extents[1])
            source = memory[start + z * strides[0] + y * strides[1] + begin :]
            for i in range(samples):
                tile[i * LANES + lane] = source[i]
        for o in range(width):
            rows = tile[(first[o] - begin) * LANES :]
            _sum_rows(rows, LANES, weights[o], made[o * LANES :][:LANES])
        for lane in range(count):
            z, y = divmod(top + lane, extents[1])
            to = target_start + z * target_strides[0] + y * target_strides[1]
            row = target[to : to + width]
            for o in range(width):
                row[o] = made[o * LANES + lane]


@numba_kernel
def clip(  # type: ignore[no-untyped-def]
    target, start, strides, extents, along, bounds
):  # fmt: skip
    """Clip the values of each slice along an axis to its bounds, lowest and highest."""
    for z in range(extents[0]):
        for y in range(extents[1]):
            at = start + z * strides[0] + y * strides[1]
            row = target[at : at + extents[2]]
            if along == 2:
                for x in range(extents[2]):
                    row[x] = min(max(row[x], bounds[x, 0]), bounds[x, 1])
            else:
                low, high = bounds[z if along == 0 else y]
                for x in range(extents[2]):
                    row[x] = min(max(row[x], low), high)


@numba_kernel
def _copy(source, made):  # type: ignore[no-untyped-def]
    for x in range(made.size):
        made[x] = source[x]


@numba_kernel
def _mix(near, far, weights, made):  # type: ignore[no-untyped-def]
    """Make a row of the two that it lies between."""
    a, b = weights[0], weights[1]
    for x in range(made.size):
        made[x] = a * near[x] + b * far[x]


@numba_kernel
def _gather(source, first, weights, made):  # type: ignore[no-untyped-def]
    """Make the samples of a row of one or two of another row each."""
    if weights.shape[1] == 1:
        for x in range(made.size):
            made[x] = source[first[x]]
    else:
        for x in range(made.size):
            at = first[x]
            made[x] = weights[x, 0] * source[at] + weights[x, 1] * source[at + 1]


@lazy_njit(nogil=True, inline="always")
def _sum_rows(rows, step, weights, made):  # type: ignore[no-untyped-def]
    """Make a row as the weighted sum of rows of a tile, in their order."""
    taps = weights.size
    whole = taps - taps % 7
    for x in range(made.size):
        made[x] = 0
    for k in range(0, whole, 7):
        a, b, c, d = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        e, f, g = weights[k + 4], weights[k + 5], weights[k + 6]
        part = rows[k * step :]
        for x in range(made.size):
            made[x] = (
                made[x]
                + a * part[x]
                + b * part[x + step]
                + c * part[x + 2 * step]
                + d * part[x + 3 * step]
                + e * part[x + 4 * step]
                + f * part[x + 5 * step]
                + g * part[x + 6 * step]
            )
    for k in range(whole, taps):
        a, part = weights[k], rows[k * step :]
        for x in range(made.size):
            made[x] = made[x] + a * part[x]
