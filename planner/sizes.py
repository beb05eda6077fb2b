"""Patch sizes worth trying for an output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from znni.shapes import Vec3


def axis_sizes(output: int, pooling: int) -> list[int]:
    """Patch extents along one axis, largest first.

    Multiples of the total pooling. Of all the extents that need the same number of patches to
    cover the output only the smallest is listed: it does the least work in the least memory.
    """
    cells = -(-output // pooling)
    return [
        pooling * m for m in sorted({-(-cells // t) for t in range(1, cells + 1)}, reverse=True)
    ]


def patch_sizes(output: Vec3, pooling: Vec3, *, isotropic: bool) -> Iterator[Vec3]:
    """Patch sizes, cubes or not, fitted to the output.

    Args:
        output: extents wanted.
        pooling: the network's total pooling.
        isotropic: the network treats all axes alike; of patches that differ only by exchanging
            axes of equal output extent, the one longest in x is listed, for its longer rows.
    """
    for z, y, x in product(*map(axis_sizes, output, pooling)):
        exchangeable = isotropic and (
            (output.z == output.y and z > y)
            or (output.y == output.x and y > x)
            or (output.z == output.x and z > x)
        )
        if not exchangeable:
            yield Vec3(z, y, x)
