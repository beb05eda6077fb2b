"""Patch sizes that are worth trying for an output.

``Search.smallest`` does not ask for them: it looks for the least memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from znni.core.shapes import AXES, Axis, Vec3

# Extents that differ by less than this share are tried only near the best of the others. In huge
# volumes there are too many of them, and they change only a few percent of the borders.
FINEST_STEP = 1 / 16

# A sweep's extents that are tried first differ by this share or more. Those across it differ by no
# more than this factor.
SWEPT_STEP = 1 / 8
SQUARE = 2


def axis_sizes(output: int, pooling: int) -> list[int]:
    """Return patch extents along one axis, largest first.

    They are multiples of the total pooling. Several extents need the same number of patches to
    cover the output. Only the smallest of them is listed, because it does the least work in the
    least memory.
    """
    cells = -(-output // pooling)
    return [
        pooling * m for m in sorted({-(-cells // t) for t in range(1, cells + 1)}, reverse=True)
    ]


def spread(sizes: Sequence[int], step: float = FINEST_STEP) -> list[int]:
    """Return the extents, given in falling order, that differ by a share or more.

    Both ends are always kept.
    """
    spread_sizes: list[int] = []
    for size in sizes:
        if not spread_sizes or size == sizes[-1] or size * (1 + step) <= spread_sizes[-1]:
            spread_sizes.append(size)
    return spread_sizes


def patch_sizes(output: Vec3, pooling: Vec3, *, isotropic: bool) -> Iterator[Vec3]:
    """Yield the patch sizes, cubes or not, that fit the output and are worth trying first.

    Args:
        output: the extents of the output.
        pooling: the network's total pooling.
        isotropic: whether the network treats all axes alike. Then some patches differ only by an
            exchange of axes with equal output extents. The one longest in x is listed, because it
            has longer rows.
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


def thin_patches(output: Vec3, pooling: Vec3, axis: Axis) -> Iterator[Vec3]:
    """Yield the patches that are worth trying first in a sweep along an axis.

    They are thin along it, because a sweep keeps the same bytes whatever that extent is. Along the
    others they are near squares, which have the least borders, unless one is the whole output's.
    The last one is the longer one if it can be.
    """
    axes = [
        spread(axis_sizes(extent, pool), SWEPT_STEP)
        for extent, pool in zip(output, pooling, strict=True)
    ]
    along = AXES.index(axis)
    first, last = (other for other in range(3) if other != along)
    for sizes in product(*axes):
        short, long = sorted((first, last), key=lambda other: sizes[other])
        near = sizes[long] <= SQUARE * sizes[short] or sizes[short] == axes[short][0]
        turned = sizes[last] < sizes[first] and sizes[last] < axes[last][0]
        if sizes[along] <= sizes[short] and near and not turned:
            yield Vec3(*sizes)


def patch_sizes_near(patch: Vec3, output: Vec3, pooling: Vec3) -> Iterator[Vec3]:
    """Yield all patch sizes within a step of ``patch`` along every axis.

    They include the sizes that ``patch_sizes`` leaves out.
    """
    axes = [
        [m for m in axis_sizes(whole, pool) if abs(m - extent) <= FINEST_STEP * max(m, extent)]
        for whole, pool, extent in zip(output, pooling, patch, strict=True)
    ]
    return (Vec3(*sizes) for sizes in product(*axes))
