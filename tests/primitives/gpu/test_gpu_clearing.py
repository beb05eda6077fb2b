"""Samples outside of a box, which are set to zero on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from local_layers import boxes

from znni.core.shapes import Box, Vec3
from znni.machine.cuda import cupy
from znni.primitives.gpu.common.clearing import clear_outside

pytestmark = pytest.mark.gpu


@settings(max_examples=50)
@given(st.data())
def test_only_samples_outside_become_zero(data: st.DataObject) -> None:
    size = Vec3(*(data.draw(st.integers(1, extent)) for extent in (5, 9, 70)))
    inside = Box(Vec3(0, 0, 0), size).intersection(data.draw(boxes(size)))
    assert inside
    whole = np.random.default_rng(0).random((2, 5, *(size + 1))) + np.float32(1)
    expected = whole.astype(np.float32)
    ours = cupy().asarray(expected)
    clear_outside(ours[:, 1:4, 1:, 1:, 1:], inside)
    view = expected[:, 1:4, 1:, 1:, 1:]
    kept = view[:, :, *inside.slices].copy()
    view[...] = 0
    view[:, :, *inside.slices] = kept
    found = ours.get()
    found[:, 1:4, 1:, 1:, 0] = expected[:, 1:4, 1:, 1:, 0]  # between rows
    np.testing.assert_array_equal(found, expected)
