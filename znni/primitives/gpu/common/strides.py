"""The strides of a GPU's arrays, as kernels take them."""

from __future__ import annotations

from typing import Any

import numpy as np


def strides_in_elements(array: Any) -> list[np.int64]:
    """Of all axes but the last, which is contiguous."""
    return [np.int64(stride // array.itemsize) for stride in array.strides[:-1]]
