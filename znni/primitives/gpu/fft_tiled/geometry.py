"""The tiles that a layer is cut into, and the frequencies of their spectra.

A tile is transformed along z first, where it is real: the upper frequencies are conjugates of the
lower ones. The planes fz = 0 and fz = z / 2 are conjugate to themselves: in these, the rows beyond
the middle of y are conjugates of others. Both are left out. ``tile_geometry.cuh`` counts the same.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3

# Extents that tiles can have: whole lines of frequencies.
LENGTHS = (8, 12, 16, 20, 24, 28, 32)


def tile_extents(largest: int, smaller: int, out: Vec3, kernel: Vec3) -> Vec3 | None:
    """Return the extents of the tiles for an output of size ``out``.

    Along each axis this is the length up to ``largest`` whose tiles have the fewest voxels in all;
    of several, the smallest.

    Returns:
        The extents. None if no tile holds the kernel. Also None if no extent is larger than
        ``smaller``: then the largest length ``smaller`` gives the same tiles.
    """
    extents = [_extent(largest, *axis) for axis in zip(out, kernel, strict=True)]
    found = [extent for extent in extents if extent is not None]
    if len(found) < len(extents) or max(found) <= smaller:
        return None
    return Vec3(*found)


@cache
def _extent(largest: int, written: int, taps: int) -> int | None:
    holding = (t for t in LENGTHS if taps < t <= largest)
    return min(holding, key=lambda t: -(-written // (t - taps + 1)) * t, default=None)


def half(length: int) -> int:
    """Return the frequencies along z of a real tile of even length."""
    return length // 2 + 1


def columns(tile: Vec3) -> int:
    """Return the pairs (fz, fy) of a tile that are not conjugates of others."""
    return (half(tile.z) - 2) * tile.y + 2 * half(tile.y)


def frequencies(tile: Vec3) -> int:
    """Return the frequencies of a tile's spectrum, without the conjugates."""
    return columns(tile) * tile.x


def mean_frequency(tile: Vec3) -> int:
    """Return the number of the frequency that is 0 along all axes, ``MEAN`` in CUDA."""
    return (half(tile.z) - 2) * tile.y * tile.x


def roots(tile: Vec3, kernel: Vec3) -> NDArray[np.complex64]:
    """Return exp(2 pi i f tap / extent), (tap, f), for z, y and x, for ``transform_kernels``."""
    parts = [
        np.exp(2j * np.pi * np.outer(np.arange(taps), np.arange(extent)) / extent).ravel()
        for taps, extent in zip(kernel, tile, strict=True)
    ]
    return np.concatenate(parts).astype(np.complex64)
