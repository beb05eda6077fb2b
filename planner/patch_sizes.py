"""Patch sizes worth trying for an output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from znni.core.shapes import Vec3

# Extents nearer to each other than this share are tried only around the best of the others: in
# huge volumes there are too many, and what they change is a few percent of the borders.
FINEST_STEP = 1 / 16


def axis_sizes(output: int, pooling: int) -> list[int]:
    """Patch extents along one axis, largest first.

    Multiples of the total pooling. Of all the extents that need the same number of patches to
    cover the output only the smallest is listed: it does the least work in the least memory.
    """
    cells = -(-output // pooling)
    return [
        pooling * m for m in sorted({-(-cells // t) for t in range(1, cells + 1)}, reverse=True)
    ]


def spread(sizes: Sequence[int]) -> list[int]:
    """Of extents in falling order, those that differ by ``FINEST_STEP`` or more, and both ends."""
    kept: list[int] = []
    for size in sizes:
        if not kept or size == sizes[-1] or size * (1 + FINEST_STEP) <= kept[-1]:
            kept.append(size)
    return kept


def patch_sizes(output: Vec3, pooling: Vec3, *, isotropic: bool) -> Iterator[Vec3]:
    """Patch sizes, cubes or not, fitted to the output, that are worth trying first.

    Args:
        output: extents wanted.
        pooling: the network's total pooling.
        isotropic: the network treats all axes alike; of patches that differ only by exchanging
            axes of equal output extent, the one longest in x is listed, for its longer rows.
    """
    axes = (spread(axis_sizes(extent, pool)) for extent, pool in zip(output, pooling, strict=True))
    for z, y, x in product(*axes):
        exchangeable = isotropic and (
            (output.z == output.y and z > y)
            or (output.y == output.x and y > x)
            or (output.z == output.x and z > x)
        )
        if not exchangeable:
            yield Vec3(z, y, x)


def patch_sizes_near(patch: Vec3, output: Vec3, pooling: Vec3) -> Iterator[Vec3]:
    """All patch sizes within a step of one along every axis, with those that were left out."""
    axes = [
        [m for m in axis_sizes(whole, pool) if abs(m - extent) <= FINEST_STEP * max(m, extent)]
        for whole, pool, extent in zip(output, pooling, patch, strict=True)
    ]
    return (Vec3(*sizes) for sizes in product(*axes))
