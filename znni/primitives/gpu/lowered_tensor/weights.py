"""The weights of a convolution as tensor cores read them beside a float32 image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.network.weights import Float32
from znni.primitives.gpu.common.rounding import BFLOAT16_LACKS, TF32_LACKS, rounded
from znni.primitives.gpu.lowered_tensor.geometry import UNIT_MAPS, Block
from znni.primitives.gpu.lowered_tensor.number_formats import HALVES, upper_halves


def weights_by_unit(weight: Float32, block: Block) -> NDArray[Any]:
    """Weights in the order in which they lie in shared memory, zero where there are none.

    Of 16 maps a thread has every fourth, in the order in which it brings them; of bfloat16 it has
    two side by side in each half of a product's maps, of tf32 one.

    Args:
        weight: (f', f, z, y, x).
        block: that they are for.

    Returns:
        (unit of 16 maps, part, half of a product's maps, column, number), rows of 16 bytes: halves
        as the bits of bfloat16, a part high or low ones; or tf32, a part 8 of the maps.
    """
    features = weight.shape[1]
    whole = np.zeros((block.kernel.z, block.set_columns, block.units * UNIT_MAPS), np.float32)
    by_tap = weight.transpose(2, 3, 4, 0, 1).reshape(block.kernel.z, -1, features)
    whole[:, : block.sums, :features] = by_tap
    planes = [(block.kernel.z - 1 - i) % block.kernel.z for i in range(2 * block.kernel.z - 1)]
    columns = whole[planes].reshape(block.cycle, block.units, UNIT_MAPS)
    return _halves(columns) if block.numbers is HALVES else _tf32(columns)


def _tf32(columns: Float32) -> NDArray[Any]:
    """Of (column, unit, map): a thread has maps 4 apart, one of each half of a product's."""
    split = rounded(columns, TF32_LACKS).reshape(*columns.shape[:2], 2, 2, 4)
    return np.ascontiguousarray(split.transpose(1, 2, 3, 0, 4))


def _halves(columns: Float32) -> NDArray[Any]:
    """Of (column, unit, map): a thread has maps 4 apart, two of each half of a product's."""
    high = rounded(columns, BFLOAT16_LACKS)
    low = rounded(columns - high, BFLOAT16_LACKS)
    parts = np.stack((upper_halves(high), upper_halves(low)))
    count, units = columns.shape[:2]
    split = parts.reshape(2, count, units, 2, 2, 4).transpose(2, 0, 3, 1, 5, 4)
    return np.ascontiguousarray(split).reshape(units, 2, 2, count, 8)
