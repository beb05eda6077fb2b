"""Ranges of numbers in float16: powers of two that keep all of them within it.

A number of a tile's spectrum is at most its voxels' largest times their count. Each tile and group
of input maps has an exponent of two above its voxels; a number is stored times
``2**(left_shift - exponent)``, below ``2**LEFT_BITS``. The kernels of an output map are multiplied
so that their numbers sum to less than ``2**RIGHT_BITS`` over all input maps. Products stay below
2**15, then, which float16 holds whatever the input. Most numbers of an image are 2**5 to 2**12
below the bound, and float16 keeps its precision down to 2**29 below it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3

LEFT_BITS = 11
RIGHT_BITS = 4

# Exponents of tiles, such that scales are normal numbers of float32 whatever the voxels.
LEAST_EXPONENT = -110
MOST_EXPONENT = 120

# Exponents of kernels' scales.
MOST_SCALE = 100


def left_shift(tile: Vec3) -> int:
    """What a tile's numbers are multiplied by, as an exponent, where its voxels are below 1."""
    return LEFT_BITS - (tile.volume - 1).bit_length()


def scales_of_kernels(weight: NDArray[np.floating[Any]], tile: Vec3) -> NDArray[np.float32]:
    """Powers of two that the kernels of each output map are multiplied by.

    Args:
        weight: of a layer, (f', f, z, y, x).
        tile: whose number of voxels the kernels' spectra are divided by.
    """
    sums = np.abs(weight).sum(axis=(1, 2, 3, 4), dtype=np.float64) / tile.volume
    exponents = RIGHT_BITS - np.frexp(sums)[1]
    clipped = np.clip(exponents, -MOST_SCALE, MOST_SCALE)
    return np.asarray(np.ldexp(np.float32(1), clipped), np.float32)
