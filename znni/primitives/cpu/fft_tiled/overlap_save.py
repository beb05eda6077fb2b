"""Overlap-save: the extents and places of tiles that cover a valid convolution's output.

A tile of T voxels holds T - k + 1 valid outputs along an axis with a kernel of k. Tiles lie side by
side in the output and overlap in the input. The last one is shifted back inside. If the output is
pooled, output voxels are pooled voxels, and tiles hold whole windows.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import ONE, Vec3
from znni.network.weights import Float32

# Possible extents of tiles: products of small factors. ``TILES`` of a primitive bounds them.
LENGTHS = (4, 6, 8, 9, 10, 12, 14, 15, 16, 18, 20, 24, 28, 30, 32, 36, 40)

# Columns: start of a tile, and outputs to skip along z, y and x.
TABLE_COLUMNS = 4

UNPOOLED = ONE


def tile_extents(
    largest: Vec3, smaller: Vec3, size: Vec3, kernel: Vec3, window: Vec3 = UNPOOLED
) -> Vec3 | None:
    """Return the extents of the tiles for a layer on images of ``size``.

    Along each axis, candidates are the lengths up to ``largest``. The choice is the length whose
    tiles have the fewest voxels in total, and among several the largest. Along z and y the length
    is 1 (no transform) if the kernel has one tap and nothing is pooled.

    Returns:
        The extents. The result is None if no tile can be larger than the kernel. It is also None
        if none is larger than ``smaller``: then a ``largest`` of that gives the same tiles.
    """
    extents = [
        1 if taps == across == 1 and axis != "x" else _extent(most, voxels, taps, across)
        for axis, most, voxels, taps, across in zip(
            "zyx", largest, size, kernel, window, strict=True
        )
    ]
    found = [extent for extent in extents if extent is not None]
    if len(found) < len(extents) or Vec3(*found).within(smaller):
        return None
    return Vec3(*found)


@cache
def _extent(largest: int, voxels: int, taps: int, across: int) -> int | None:
    written = (voxels - taps + 1) // across
    lengths = {t: (t - taps + 1) // across for t in LENGTHS if t <= largest}
    holding = {t: step for t, step in lengths.items() if step > 0 and t > taps}
    return min(holding, key=lambda t: (-(-written // holding[t]) * t, -t), default=None)


@cache
def _inner(tile: int, voxels: int, taps: int, across: int) -> tuple[int, int]:
    """Return the voxels that a tile reads and writes along an axis."""
    written = (min(tile, voxels) - taps + 1) // across
    return written * across + taps - 1, written


@cache
def _count(tile: int, voxels: int, taps: int, across: int) -> int:
    """Return the number of tiles along an axis."""
    _, written = _inner(tile, voxels, taps, across)
    return -(-((voxels - taps + 1) // across) // written)


def inner_extents(
    tile: Vec3, size: Vec3, kernel: Vec3, window: Vec3 = UNPOOLED
) -> tuple[Vec3, Vec3]:
    """Return the voxels that a tile reads and writes; small images have fewer than a tile holds."""
    z, y, x = map(_inner, tile, size, kernel, window)
    return Vec3(z[0], y[0], x[0]), Vec3(z[1], y[1], x[1])


def tiles_of(tile: Vec3, size: Vec3, kernel: Vec3, window: Vec3 = UNPOOLED) -> NDArray[np.int64]:
    """Return the tiles of an image, z slowest; together they write every output exactly once.

    Returns:
        An array (tiles, 2, 3). It has each tile's first output voxel, and the number of its first
        outputs along each axis that the previous tile has already written. In the input, the first
        voxel is ``window`` times as far.
    """
    _, step = inner_extents(tile, size, kernel, window)
    corners, skips = [], []
    for total, by in zip((size - kernel + 1) // window, step, strict=True):
        starts = np.arange(0, total, by)
        corners.append(starts.clip(max=total - by))
        skips.append(starts - corners[-1])
    parts = [np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1) for axes in (corners, skips)]
    return np.stack([part.reshape(-1, 3) for part in parts], axis=1)


def tile_count(tile: Vec3, size: Vec3, kernel: Vec3, window: Vec3 = UNPOOLED) -> int:
    """Return the number of tiles that cover the output of one image."""
    z, y, x = map(_count, tile, size, kernel, window)
    return z * y * x


def tile_table(
    tiles: NDArray[np.int64], array: Float32, step: Vec3 = UNPOOLED
) -> NDArray[np.int64]:
    """Return a table for the kernels of the tiles of all images in an array, image slowest.

    Args:
        tiles: tiles of one image, from ``tiles_of``.
        array: input or output (n, f, z, y, x).
        step: voxels of the array for each output voxel. It is the window for an input to be
            pooled.

    Returns:
        A table (tile, column). It has the tile's start, in elements from the first voxel of the
        array, and the outputs that it skips along z, y and x.
    """
    images = len(array)
    image, _, *voxels = (stride // array.itemsize for stride in array.strides)
    table = np.empty((images, len(tiles), TABLE_COLUMNS), np.int64)
    table[:, :, 0] = tiles[:, 0] @ (np.array(voxels) * step)
    table[:, :, 0] += np.arange(images)[:, np.newaxis] * image
    table[:, :, 1:] = tiles[:, 1]
    return table.reshape(-1, TABLE_COLUMNS)
