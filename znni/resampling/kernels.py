"""The loops of resampling: one axis of a map (z, y, x) at a time.

Long sums run over a tile: a copy of a few columns of all source samples, row after row. So the rows
lie in the nearest cache, however far apart they are in the volume.
"""

from __future__ import annotations

from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.resampling.transposition import transpose_matrix
from znni.resampling.weighted_rows import sum_rows, sum_rows_of_32

COLUMNS = 256  # of a tile along z or y
LANES = 32  # rows that are resampled together along x


def tile_floats(samples: int, made: int) -> int:
    """Return the floats of a tile for a pass along any axis."""
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
                    at_row = (first[o] - begin) * COLUMNS
                    to_row = to + o * to_step + x
                    sum_rows(tile, at_row, COLUMNS, weights[o], target, to_row, count)


@numba_kernel
def resample_along_x(  # type: ignore[no-untyped-def]
    memory, start, strides, target, target_start, target_strides, extents, first, weights, tile
):  # fmt: skip
    """Resample along x, with the arguments of ``resample_rows`` but ``along``."""
    taps, width = weights.shape[1], extents[2]
    begin = first[0]
    samples = first[width - 1] + taps - begin
    made = tile[samples * LANES :]
    for z in range(extents[0]):
        at = start + z * strides[0] + begin
        to = target_start + z * target_strides[0]
        if taps == 1:
            for y in range(extents[1]):
                row = target[to + y * target_strides[1] :][:width]
                _pick(memory[at - begin + y * strides[1] :], first, row)
            continue
        for y in range(0, extents[1], LANES):
            count = min(LANES, extents[1] - y)
            from_y, to_y = at + y * strides[1], to + y * target_strides[1]
            transpose_matrix(memory, from_y, strides[1], tile, 0, LANES, count, samples)
            for o in range(width):
                at_row = (first[o] - begin) * LANES
                sum_rows_of_32(tile, at_row, LANES, weights[o], made, o * LANES)
            transpose_matrix(made, 0, LANES, target, to_y, target_strides[1], width, count)


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
    """Make a row from the two rows on its sides."""
    a, b = weights[0], weights[1]
    for x in range(made.size):
        made[x] = a * near[x] + b * far[x]


@numba_kernel
def _pick(source, first, made):  # type: ignore[no-untyped-def]
    """Copy one source sample to each sample of a row."""
    for x in range(made.size):
        made[x] = source[first[x]]
