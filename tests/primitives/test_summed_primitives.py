"""Convolutions that add to a value in memory, against the float64 reference."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from layers import linear_reference, primitives_for, random_input, random_weights, suited

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.network.layers import Activation, Add, Conv, SummedConv
from znni.plans.primitive import Primitive
from znni.primitives import reference

ACTIVATIONS = [name for name in get_args(Activation) if name != "prelu"]
SLOPE = 0.3


def summed(features: int, out_features: int, activation: Activation) -> SummedConv:
    conv = Conv("conv", features, out_features, Vec3(3, 2, 3), "identity")
    return SummedConv(conv, Add("add", activation, SLOPE))


FEW = summed(2, 3, "relu"), Shape5(1, 2, 9, 17, 19)
MANY = summed(3, 35, "relu"), Shape5(2, 3, 13, 15, 41)
summing = pytest.mark.parametrize("primitive", primitives_for(*FEW))


def test_tiled_fft_and_winograd_add() -> None:
    names = {parameter.id for parameter in primitives_for(*FEW)}
    assert {"fft_tiled_8", "fft_tiled_12_transient", "winograd"} <= names


@pytest.mark.slow_cases
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("maps", [(2, 3), (3, 35)], ids=["few maps", "several vectors of maps"])
@summing
def test_sums_in_place_and_elsewhere_are_accurate(
    primitive: Primitive, maps: tuple[int, int], activation: Activation
) -> None:
    layer = summed(*maps, activation)
    shape = suited(primitive, layer, Shape5(2, maps[0], 13, 15, 41))
    assert shape is not None
    out = primitive.out_shape(layer, shape)
    assert out == primitive.out_shape(layer.conv, shape)
    assert out is not None
    x, other, weights = random_input(shape), random_input(out, 1), random_weights(layer.conv)
    linear = linear_reference(x, layer.conv, weights) + other
    expected = reference.activation(linear, activation, SLOPE)
    within = primitive.accuracy * np.abs(linear).max()

    run = primitive.build(layer, shape, weights)
    before = other.copy()
    assert np.abs(run(x, other) - expected).max() <= within
    np.testing.assert_array_equal(other, before)

    whole = np.full((out.n, out.f + 2, out.z + 2, out.y + 1, out.x + 4), np.nan, np.float32)
    place = whole[:, 1:-1, 1:-1, 1:, 3:-1]
    place[:] = other
    with output_into(place):
        run(x, place)
    assert np.abs(place - expected).max() <= within
    place[:] = np.nan
    assert np.isnan(whole).all()


@pytest.mark.parametrize(("layer", "shape"), [FEW, MANY], ids=["few maps", "many maps"])
@summing
def test_a_sum_costs_one_more_pass_over_the_output(
    primitive: Primitive, layer: SummedConv, shape: Shape5
) -> None:
    suitable = suited(primitive, layer, shape)
    assert suitable is not None
    together, alone = (primitive.cost(each, suitable) for each in (layer, layer.activated))
    out = primitive.out_shape(layer, suitable)
    assert out is not None
    assert together.memory == alone.memory
    assert together.flops == alone.flops
    assert together.bytes_moved == alone.bytes_moved + out.nbytes
