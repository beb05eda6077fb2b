"""Convolutions that add to a packed value as they store."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import EMULATED
from layers import random_case, random_input
from packed_layers import expected, in_both_formats, primitive_for
from packed_values import empty, packed, unpacked

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.machine import Device
from znni.machine.packed_arrays import packed_bytes
from znni.network.layers import (
    Add,
    Conv,
    PackedLayer,
    SummedConv,
)
from znni.primitives import reference
from znni.primitives.gpu.common.number_formats import TensorFormat

ONE, TWO, THREE = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)

SUMS = {
    "groups": (
        SummedConv(Conv("conv", 24, 40, THREE, "identity"), Add("add", "elu")),
        Shape5(1, 24, 7, 12, 21),
    ),
    "several passes": (
        SummedConv(Conv("conv", 8, 168, Vec3(1, 2, 1), "identity"), Add("add", "sigmoid")),
        Shape5(1, 8, 5, 9, 11),
    ),
    "parts of groups": (
        SummedConv(Conv("conv", 12, 20, TWO, "identity"), Add("add", "relu")),
        Shape5(1, 12, 5, 9, 11),
    ),
    "batch": (
        SummedConv(Conv("conv", 16, 8, Vec3(2, 1, 3), "identity"), Add("add", "identity")),
        Shape5(2, 16, 5, 18, 35),
    ),
    "one tap of each map": (
        SummedConv(Conv("conv", 20, 20, ONE, "identity", groups=20), Add("add", "relu")),
        Shape5(2, 20, 5, 9, 11),
    ),
}


@pytest.mark.slow_cases
@in_both_formats
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", SUMS)
def test_a_convolution_adds_to_another_value_as_it_stores(
    device: Device, numbers: TensorFormat, name: str, in_place: bool
) -> None:
    layer, shape = SUMS[name]
    case = random_case(layer.conv, shape)
    linear = expected(layer.conv, case.weights, (case.x,))
    out = Shape5(*linear.shape)
    other = 4 * random_input(out, 1)
    operation = PackedLayer(layer, True, True, parts=numbers.parts)
    run = primitive_for(device, operation, shape).build(operation, shape, case.weights)
    x = packed(case.x, 2.0**-3, numbers.parts, gaps=True)
    held = packed(other, 2.0**9, numbers.parts, gaps=True)
    records = held.records.get()
    y = held._replace(records=cupy().zeros(records.shape, np.uint32))
    if not in_place:
        y = empty(out, numbers.parts, gaps=True)
    with output_into(y):
        run(x, held)
    right = reference.activation(linear + other, layer.add.activation, layer.add.slope)
    np.testing.assert_allclose(
        unpacked(y), right, rtol=0, atol=numbers.accuracy * np.abs(right).max()
    )
    np.testing.assert_array_equal(held.records.get(), records)


def test_a_sum_in_the_store_costs_one_more_pass_over_the_output() -> None:
    layer, shape = SUMS["groups"]
    together, alone = (PackedLayer(it, True, True) for it in (layer, layer.activated))
    primitive = primitive_for(EMULATED, together, shape)
    one, two = (primitive.cost(it, shape) for it in (together, alone))
    out = primitive.out_shape(together, shape)
    assert out == primitive.out_shape(alone, shape)
    assert one.memory == two.memory
    assert one.bytes_moved == two.bytes_moved + packed_bytes(out, 1)
    assert one.flops / one.efficiency >= two.flops / two.efficiency
