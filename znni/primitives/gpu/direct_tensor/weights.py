"""The weights of a convolution as tensor cores read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.network.weights import Float32
from znni.primitives.gpu.direct_tensor.geometry import GROUP, IN_MAPS, Block

# The weights of an output map are multiplied by a power of two, so that the largest is in float16's
# upper range. Then the others keep their precision, and so do the low parts of all.
BITS = 9

# Largest exponent of these powers: they and their inverses are normal numbers of float32.
MOST_EXPONENT = 100


def scales_of(weight: Float32) -> Float32:
    """Return powers of two that the weights of each output map are multiplied by.

    Args:
        weight: (f', f, z, y, x).
    """
    largest = np.abs(weight).max(axis=(1, 2, 3, 4))
    exponents = np.clip(BITS - np.frexp(largest)[1], -MOST_EXPONENT, MOST_EXPONENT)
    scales: Float32 = np.ldexp(np.float32(1), exponents).astype(np.float32)
    return scales


def weights_by_stage(weight: Float32, block: Block) -> NDArray[Any]:
    """Return weights in the order in which blocks bring them, padded with zeros.

    Args:
        weight: (f', f, z, y, x), in float16's range.
        block: the block that brings them.

    Returns:
        float16 (pass, chunk of 16 input maps, row of taps, x, part, half of the chunk, output map
        of the pass, input map of the half).
    """
    maps, features, *kernel = weight.shape
    whole = np.zeros((block.passes * block.columns, block.chunks * IN_MAPS, *kernel), np.float32)
    whole[:maps, :features] = weight
    parts = block.numbers.split(whole).astype(np.float16)
    split = parts.reshape(
        len(parts), block.passes, block.columns, block.chunks, IN_MAPS // GROUP, GROUP, *kernel
    )
    z, y = np.array(block.rows).T
    return np.ascontiguousarray(split.transpose(1, 3, 6, 7, 8, 0, 4, 2, 5)[:, :, z, y])
