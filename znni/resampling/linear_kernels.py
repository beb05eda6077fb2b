"""The loops of linear interpolation along all axes at once, for groups of rows of the target.

Rows of the source are mixed along z and y. They are transposed before they are mixed along x, so
that the same samples of all rows lie side by side.
"""

from __future__ import annotations

from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.resampling.transposition import transpose_matrix

ROWS = 16  # rows of the target that are made together


def group_floats(width: int, made: int) -> int:
    """Return the floats of scratch for a group of rows."""
    return ROWS * (2 * width + made)


@numba_kernel
def interpolate_groups(  # type: ignore[no-untyped-def]
    memory, start, strides, target, target_start, target_strides, extents, width, first, stop,
    along_z, along_y, along_x, scratch,
):  # fmt: skip
    """Interpolate some groups of rows of maps.

    Args:
        memory: the memory of the values (f, z, y, x).
        start: the place of its first element.
        strides: the elements from one index to the next.
        target: the memory of the target (f, z, y, x).
        target_start: the place of its first element.
        target_strides: the elements from one index to the next.
        extents: the extents (z, y, x) of the target.
        width: the samples of a source row.
        first: the number of the first group. A group is ``ROWS`` rows of a plane, or the rest.
        stop: the number of the group after the last.
        along_z: the samples before and after each target sample along z, and their weights.
        along_y: the same along y.
        along_x: the same along x.
        scratch: scratch of ``group_floats`` floats.
    """
    mixed, turned = scratch[: ROWS * width], scratch[ROWS * width : 2 * ROWS * width]
    value = scratch[2 * ROWS * width :]
    groups = (extents[1] + ROWS - 1) // ROWS
    for group in range(first, stop):
        plane, y = divmod(group, groups)
        f, z = divmod(plane, extents[0])
        y *= ROWS
        count = min(ROWS, extents[1] - y)
        interpolate_group(
            memory, start + f * strides[0], strides, width, z, y, count, along_z, along_y, along_x,
            mixed, turned, value,
        )  # fmt: skip
        to = target_start + f * target_strides[0] + z * target_strides[1] + y * target_strides[2]
        transpose_matrix(value, 0, ROWS, target, to, target_strides[2], extents[2], count)


@numba_kernel
def interpolate_group(  # type: ignore[no-untyped-def]
    memory, image, strides, width, z, y, count, along_z, along_y, along_x, mixed, turned, value
):  # fmt: skip
    """Interpolate a group of rows of a map: ``count`` rows of a plane from row ``y`` on.

    The array ``value`` takes the values (x, row). The other arguments are parts of those of
    ``interpolate_groups``.
    """
    above = image + along_z[0][z] * strides[1]
    below = image + along_z[1][z] * strides[1]
    for lane in range(count):
        near = along_y[0][y + lane] * strides[2]
        far = along_y[1][y + lane] * strides[2]
        _mix_four(
            memory[above + near :], memory[above + far :], memory[below + near :],
            memory[below + far :], along_z[2][z], along_z[3][z], along_y[2][y + lane],
            along_y[3][y + lane], mixed[lane * width : (lane + 1) * width],
        )  # fmt: skip
    transpose_matrix(mixed, 0, width, turned, 0, ROWS, count, width)
    for x in range(along_x[0].size):
        near, far = along_x[0][x] * ROWS, along_x[1][x] * ROWS
        weight, rest = along_x[2][x], along_x[3][x]
        for lane in range(ROWS):
            value[x * ROWS + lane] = weight * turned[near + lane] + rest * turned[far + lane]


@numba_kernel
def _mix_four(a, b, c, d, above, below, near, far, made):  # type: ignore[no-untyped-def]
    """Make a row from the four rows around it."""
    weight_a, weight_b, weight_c, weight_d = above * near, above * far, below * near, below * far
    for x in range(made.size):
        made[x] = weight_a * a[x] + weight_b * b[x] + weight_c * c[x] + weight_d * d[x]
