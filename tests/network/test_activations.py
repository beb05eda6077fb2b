"""The properties of activations are those of their formulas."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from znni.network.activations import TRAITS, Activation, increases
from znni.primitives import reference

SLOPE = 0.5


def values(activation: Activation, factor: float = 1.0) -> NDArray[Any]:
    """The first map's values, from low numbers to high ones. The second map grows faster."""
    x = factor * np.linspace(-20, 20, 4001)
    maps = np.stack([x, 2 * x])[np.newaxis, :, np.newaxis, np.newaxis]
    return reference.activation(maps, activation, SLOPE)[0, 0, 0, 0]


@pytest.mark.parametrize("activation", get_args(Activation))
def test_traits_are_those_of_the_formula(activation: Activation) -> None:
    traits, y = TRAITS[activation], values(activation)
    assert traits.least <= y.min() <= y.max() <= traits.most
    reached = {traits.least: y.min(), traits.most: y.max()}
    assert all(np.isclose(*ends, atol=1e-6) for ends in reached.items() if np.isfinite(ends[0]))
    assert increases(activation, SLOPE) == bool((np.diff(y) >= 0).all())
    assert increases(activation, -SLOPE) == (traits.increases and not traits.has_slope)
    assert (traits.kind == "lines") == np.array_equal(values(activation, 2.0**-9), 2.0**-9 * y)


def test_values_from_0_to_1() -> None:
    assert {name for name in TRAITS if TRAITS[name].is_share} == {"sigmoid", "softmax"}
    assert {name for name in TRAITS if TRAITS[name].is_bounded} == {"sigmoid", "softmax", "tanh"}
