"""The code that GPU primitives share, as far as it can be tested without a GPU."""

from __future__ import annotations

import numpy as np

from znni.primitives.gpu.common.kernels import strides_in_elements


def test_strides_count_elements_of_views_too() -> None:
    whole = np.zeros((2, 3, 5, 7, 11), np.float32)
    assert strides_in_elements(whole) == [1155, 385, 77, 11]
    assert strides_in_elements(whole[:, 1:, ::2, 2:, 4:]) == [1155, 385, 154, 11]
    assert strides_in_elements(whole[0].astype(np.float64)) == [385, 77, 11]
    assert all(isinstance(stride, np.int64) for stride in strides_in_elements(whole))
