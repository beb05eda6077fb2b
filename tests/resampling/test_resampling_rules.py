"""Which voxels a resampling needs, and how nnU-Net chooses it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resampling_cases import WHOLE_START, boxes, resamplings

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.core.spline_weights import axis_taps
from znni.resampling.nnunet_rule import Spacing, nnunet_resampling, resampled_extents

SHAPE = Vec3(11, 14, 17)


@pytest.mark.parametrize(
    ("spacing", "new", "force", "separate"),
    [
        ((1.0, 1.0, 1.0), (1.5, 1.5, 1.5), None, None),
        ((5.0, 0.7, 0.7), (1.0, 1.0, 1.0), None, 0),
        ((0.7, 5.0, 0.7), (0.9, 2.0, 0.8), None, 1),
        ((1.0, 1.0, 1.0), (1.0, 1.2, 6.0), None, 2),  # by the new spacing
        ((3.0, 1.0, 1.0), (1.0, 1.0, 1.0), None, None),  # not beyond the threshold
        ((0.24, 1.25, 1.25), (0.5, 1.0, 1.0), None, None),  # two axes are coarsest
        ((2.0, 0.7, 0.7), (2.0, 0.9, 0.9), True, 0),
        ((1.0, 1.0, 1.0), (5.0, 1.0, 1.0), True, None),  # by the present spacing, if forced
        ((5.0, 0.7, 0.7), (1.0, 1.0, 1.0), False, None),
    ],
)
def test_the_axis_that_nnunet_resamples_apart(
    spacing: Spacing, new: Spacing, force: bool | None, separate: int | None
) -> None:
    found = nnunet_resampling(SHAPE, spacing, new, 3, 1, force)
    orders = tuple(1 if axis == separate else 3 for axis in range(3))
    assert found == Resampling(SHAPE, resampled_extents(SHAPE, spacing, new), orders, separate)  # type: ignore[arg-type]


def test_extents_are_rounded_to_even_and_may_be_given() -> None:
    found = resampled_extents(Vec3(5, 7, 9), (1.0, 1.0, 1.0), (2.0, 2.0, 0.7))
    assert found == Vec3(2, 4, 13)  # 2.5, 3.5, 12.9
    given_shape = Vec3(3, 4, 13)
    back = nnunet_resampling(found, (2.0,) * 3, (1.0,) * 3, 1, new_shape=given_shape)
    assert back.target == given_shape
    assert back.orders == (1, 1, 1)


@pytest.mark.parametrize(
    ("target", "orders", "separate", "said"),
    [
        (Vec3(0, 1, 1), (1, 1, 1), None, "one is empty"),
        (Vec3(1, 1, 1), (1, 2, 1), None, "order 2"),
        (Vec3(1, 1, 1), (1, 1, 1), 3, "no axis 3"),
    ],
)
def test_what_is_no_resampling(
    target: Vec3, orders: tuple[int, int, int], separate: int | None, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Resampling(SHAPE, target, orders, separate)


@pytest.mark.parametrize(("source", "target"), list(product((1, 2, 5, 40), (1, 3, 5, 77))))
@pytest.mark.parametrize("order", [0, 1, 3])
def test_weights_add_up_to_one_inside(source: int, target: int, order: int) -> None:
    taps = axis_taps(source, target, order)
    np.testing.assert_allclose(taps.weights.sum(axis=1), 1, atol=1e-12)
    assert taps.first.min() >= 0
    assert taps.first.max() + taps.taps <= source
    assert (np.diff(taps.first) >= 0).all()


def test_voxels_that_stay_are_copied() -> None:
    assert axis_taps(9, 9, 3).taps == 1
    np.testing.assert_array_equal(axis_taps(9, 9, 3).first, np.arange(9))


@given(resamplings(), st.data())
def test_a_source_box_lies_within_the_source(resampling: Resampling, data: st.DataObject) -> None:
    box = data.draw(boxes(resampling.target))
    source = resampling.source_box(box)
    assert source.within(Box(WHOLE_START, resampling.source))
