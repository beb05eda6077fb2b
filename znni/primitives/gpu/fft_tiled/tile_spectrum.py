"""The spectrum of a tile of real numbers: which frequencies there are, and where they lie.

A tile is transformed along z first, where it is real: the upper frequencies are conjugates of the
lower ones. Of the planes fz = 0 and fz = z / 2, which are conjugate to themselves, the rows beyond
the middle of y are conjugates of others. Both are left out. ``tile_geometry.cuh`` counts the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3


def half(length: int) -> int:
    """Frequencies along z of a real tile of even length."""
    return length // 2 + 1


def columns(tile: Vec3) -> int:
    """Pairs (fz, fy) that are no conjugates of others."""
    return (half(tile.z) - 2) * tile.y + 2 * half(tile.y)


def frequencies(tile: Vec3) -> int:
    """Frequencies of a tile's spectrum, without the conjugates."""
    return columns(tile) * tile.x


def roots(tile: Vec3, kernel: Vec3) -> NDArray[np.complex64]:
    """What ``transform_kernels`` takes: exp(2 pi i f tap / extent), (tap, f), for z, y and x."""
    parts = [
        np.exp(2j * np.pi * np.outer(np.arange(taps), np.arange(extent)) / extent).ravel()
        for taps, extent in zip(kernel, tile, strict=True)
    ]
    return np.concatenate(parts).astype(np.complex64)
