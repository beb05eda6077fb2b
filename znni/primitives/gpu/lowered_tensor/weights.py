"""The weights of a convolution in the order in which tensor cores read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.network.weights import Float32
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR, TF32, bits_of_bfloat16
from znni.primitives.gpu.lowered_tensor.geometry import UNIT_MAPS, ThreadBlock


def weights_by_unit(weight: Float32, block: ThreadBlock) -> NDArray[Any]:
    """Return weights in the order in which they lie in shared memory, padded with zeros.

    A thread has every fourth of 16 maps, in the order in which it brings them. In each half of a
    product's maps it has two bfloat16 side by side, or one tf32.

    Args:
        weight: (f', f, z, y, x).
        block: the block that reads them.

    Returns:
        (unit of 16 maps, part, half of a product's maps, column, number), in rows of 16 bytes. A
        part is the high or the low bfloat16, as bits; or 8 of the maps, as tf32.
    """
    features = weight.shape[1]
    whole = np.zeros((block.kernel.z, block.set_columns, block.units * UNIT_MAPS), np.float32)
    by_tap = weight.transpose(2, 3, 4, 0, 1).reshape(block.kernel.z, -1, features)
    whole[:, : block.sums, :features] = by_tap
    planes = [(block.kernel.z - 1 - i) % block.kernel.z for i in range(2 * block.kernel.z - 1)]
    columns = whole[planes].reshape(block.cycle, block.units, UNIT_MAPS)
    return _pairs(columns) if block.numbers is BFLOAT16_PAIR else _tf32(columns)


def _tf32(columns: Float32) -> NDArray[Any]:
    """Lay out (column, unit, map): a thread has maps 4 apart, one in each half of a product."""
    split = TF32.split(columns).reshape(*columns.shape[:2], 2, 2, 4)
    return np.ascontiguousarray(split.transpose(1, 2, 3, 0, 4))


def _pairs(columns: Float32) -> NDArray[Any]:
    """Lay out (column, unit, map): a thread has maps 4 apart, two in each half of a product."""
    parts = bits_of_bfloat16(BFLOAT16_PAIR.split(columns))
    count, units = columns.shape[:2]
    split = parts.reshape(2, count, units, 2, 2, 4).transpose(2, 0, 3, 1, 5, 4)
    return np.ascontiguousarray(split).reshape(units, 2, 2, count, 8)
