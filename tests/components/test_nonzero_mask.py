"""The mask of what is not 0 is nnU-Net's: holes are filled, over any slabs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy.ndimage import binary_fill_holes

from znni.components.nonzero import nonzero_bytes, nonzero_mask
from znni.components.slabs import slab_boxes
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3


def mask_of(values: NDArray[Any], slab: int, **options: Any) -> tuple[Box, NDArray[np.bool_]]:
    """The box of an array (f, z, y, x), and its mask from slabs."""
    extents = Vec3(*values.shape[1:])
    found = nonzero_mask(lambda box: values[(slice(None), *box.slices)], extents, slab, **options)
    return found.box, np.concatenate([found.slab(box) for box in slab_boxes(extents, slab)])


@given(
    values=arrays.arrays(
        st.sampled_from([np.uint8, np.int16, np.float32]),
        st.tuples(st.integers(1, 2), *[st.integers(1, 7)] * 3),
        elements=st.sampled_from([0, 0, 1]),
        fill=st.sampled_from([0, 1]),
    ),
    slab=st.integers(1, 8),
)
@settings(max_examples=150, deadline=None)
def test_the_mask_is_that_of_nnunet(values: NDArray[Any], slab: int) -> None:
    wanted = binary_fill_holes((values != 0).any(axis=0))
    box, mask = mask_of(values, slab)
    np.testing.assert_array_equal(mask, wanted)
    if wanted.any():
        inside = np.argwhere(wanted)
        assert box == Box(Vec3(*inside.min(axis=0)), Vec3(*inside.max(axis=0)) + 1)


@pytest.mark.parametrize("slab", [1, 2, 3, 9])
def test_a_hole_through_several_slabs(slab: int) -> None:
    values = np.zeros((2, 9, 8, 8), np.float32)
    values[0, 1:8, 1:7, 1:7] = np.nan
    values[1, 1, 1, 1] = -1
    values[0, 2:7, 3, 3] = 0  # a hole
    values[0, 4, 3:8, 5] = 0  # open to the border
    box, mask = mask_of(values, slab)
    assert mask[2:7, 3, 3].all()
    assert not mask[4, 3:8, 5].any()
    assert box == Box(Vec3(1, 1, 1), Vec3(8, 7, 7))


def test_a_volume_that_is_0_counts_as_a_whole() -> None:
    box, mask = mask_of(np.zeros((1, 3, 4, 5)), 2)
    assert box == Box(Vec3(0, 0, 0), Vec3(3, 4, 5))
    assert not mask.any()


def test_too_many_holes_are_refused() -> None:
    values = np.ones((1, 8, 8, 8), np.uint8)
    values[:, ::2, ::2, ::2] = 0
    with pytest.raises(InvalidInput, match="more than 20 components"):
        mask_of(values, 2, most_components=20)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_no_more_memory_than_declared(share: float) -> None:
    extents, slab, most = Vec3(40, 96, 160), 8, 2**17
    values = (np.random.default_rng(0).random((2, *extents)) < share).astype(np.float32)
    options = {"most_components": most}
    mask_of(values[:, :8], slab, **options)  # compiles
    tracemalloc.start()
    try:
        nonzero_mask(
            lambda box: values[(slice(None), *box.slices)].copy(), extents, slab, **options
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= nonzero_bytes(extents, slab, 2, 4, **options)
