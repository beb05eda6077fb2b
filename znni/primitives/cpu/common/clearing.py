"""Zeros: in whole arrays, and around what lies within a box, as padding."""

from __future__ import annotations

from znni.core.shapes import Box, Vec3
from znni.network.weights import Float32
from znni.primitives.cpu.common.numba_kernel import numba_kernel, output_view
from znni.primitives.cpu.common.workers import Workers

# Fewest bytes of an array that several workers clear.
SHARED_BYTES = 2**20

NOTHING = Box(Vec3(0, 0, 0), Vec3(0, 0, 0))


def clear(values: Float32, pool: Workers) -> None:
    """Set values (n, f, z, y, x) to zero. If pages are new, all workers touch them."""
    clear_outside(values, NOTHING, pool)


def clear_outside(values: Float32, inside: Box, pool: Workers) -> None:
    """Set the values (n, f, z, y, x) outside a box to zero. Their rows are contiguous."""
    whole = Box(Vec3(0, 0, 0), Vec3(*values.shape[2:]))
    if whole.within(inside):
        return
    kept = inside.intersection(whole) or NOTHING
    view = output_view(values)

    def task(_worker: int, planes: slice) -> None:
        _clear(*view, values.shape, *kept.start, *kept.stop, planes.start, planes.stop)

    planes = values.shape[0] * values.shape[1] * values.shape[2]
    if values.nbytes < SHARED_BYTES:
        task(0, slice(0, planes))
    else:
        pool.for_each(task, pool.shares(planes, values.nbytes // SHARED_BYTES))


@numba_kernel
def _clear(  # type: ignore[no-untyped-def]
    memory, start, strides, extents, low_z, low_y, low_x, high_z, high_y, high_x, first, stop
):
    """Clear some planes of (n, f, z, y, x), counted through all maps, but not what is kept."""
    length = extents[4]
    for plane in range(first, stop):
        above, z = divmod(plane, extents[2])
        n, f = divmod(above, extents[1])
        for y in range(extents[3]):
            at = start + n * strides[0] + f * strides[1] + z * strides[2] + y * strides[3]
            row = memory[at : at + length]
            before, after = length, length
            if low_z <= z < high_z and low_y <= y < high_y:
                before, after = low_x, high_x
            for x in range(before):
                row[x] = 0.0
            for x in range(after, length):
                row[x] = 0.0
