"""Ranges of numbers in float16: powers of two that keep all numbers within it.

A number of a tile's spectrum is at most the largest voxel times the number of voxels. Each tile and
group of input maps has an exponent of two above its voxels. A number is stored times
``2**(left_shift - exponent)``, below ``2**LEFT_BITS``. The kernels of an output map are multiplied
so that their numbers sum to less than ``2**RIGHT_BITS`` over all input maps. So products stay below
2**15, which float16 holds for any input. Most numbers of an image are 2**5 to 2**12 below the
bound, and float16 keeps its precision down to 2**29 below it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3

LEFT_BITS = 11
RIGHT_BITS = 4

# Exponents of tiles: scales are normal numbers of float32 for any voxels.
LEAST_EXPONENT = -110
MOST_EXPONENT = 120

# The largest exponent of kernels' scales.
MOST_SCALE = 100


def left_shift(tile: Vec3) -> int:
    """Return the exponent of the factor on a tile's numbers if its voxels are below 1."""
    return LEFT_BITS - (tile.volume - 1).bit_length()


def scales_of_kernels(weight: NDArray[np.floating[Any]], tile: Vec3) -> NDArray[np.float32]:
    """Return powers of two that the kernels of each output map are multiplied by.

    Args:
        weight: the weights of a layer, (f', f, z, y, x).
        tile: extents of a tile: the kernels' spectra are divided by its number of voxels.
    """
    sums = np.abs(weight).sum(axis=(1, 2, 3, 4), dtype=np.float64) / tile.volume
    exponents = RIGHT_BITS - np.frexp(sums)[1]
    clipped = np.clip(exponents, -MOST_SCALE, MOST_SCALE)
    return np.asarray(np.ldexp(np.float32(1), clipped), np.float32)
