"""Two convolutions of one tap as one operation, against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import MACHINE, extents, inputs, seeds

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.network.layers import Activation, Add, Conv, ConvPair, SummedConvPair
from znni.network.weights import ConvWeights, Weights, random_layer_weights
from znni.primitives import tiled_reference
from znni.primitives.cpu.pointwise_pair.primitive import PointwisePair, primitives

ONE = Vec3(1, 1, 1)
ACTIVATIONS: tuple[Activation, ...] = ("identity", "relu", "gelu", "prelu", "leaky_relu")
(PAIR,) = primitives(MACHINE.host)
maps = st.sampled_from([1, 3, 8, 17, 150])


def weights_of(pair: ConvPair, seed: int) -> Weights:
    generator = np.random.default_rng(seed)
    layers = {it.name: random_layer_weights(it, generator) for it in (pair.conv, pair.after)}
    return Weights(layers, "test")


def in_order(weights: Weights) -> ConvWeights:
    found = weights.of_operation(["first", "second"])
    assert found is not None
    return found


@settings(max_examples=40)
@given(data=st.data())
def test_a_pair_is_the_reference(data: st.DataObject) -> None:
    taken, between, made = (data.draw(maps) for _ in range(3))
    first, second = (data.draw(st.sampled_from(ACTIVATIONS)) for _ in range(2))
    pair = ConvPair(
        Conv("first", taken, between, ONE, first), Conv("second", between, made, ONE, second)
    )
    shape = Shape5.of(data.draw(st.integers(1, 2)), taken, data.draw(extents(1, 13)))
    x, weights = data.draw(inputs)(shape, data.draw(seeds)), weights_of(pair, data.draw(seeds))
    right = tiled_reference.local(
        pair.after, weights, [tiled_reference.local(pair.conv, weights, [x])]
    )
    run = PAIR.build(pair, shape, in_order(weights))
    n, f, z, y, width = right.shape
    whole = np.full((n, f + 2, z + 1, y + 2, width + 3), np.nan, np.float32)
    view = whole[:, 1:-1, 1:, 1:-1, 2:-1]
    with output_into(view):
        run(x)
    for y in (run(x), view):
        np.testing.assert_allclose(y, right, rtol=0, atol=1e-5 * max(1.0, np.abs(right).max()))
    view.fill(np.nan)
    assert np.isnan(whole).all()


@settings(max_examples=20)
@given(data=st.data())
def test_a_summed_pair_adds_to_what_lies_in_its_output(data: st.DataObject) -> None:
    taken, between, made = (data.draw(maps) for _ in range(3))
    activation = data.draw(st.sampled_from(("identity", "relu", "gelu", "leaky_relu")))
    layer = SummedConvPair(
        Conv("first", taken, between, ONE, "gelu"),
        Conv("second", between, made, ONE, "identity"),
        Add("sum", activation, slope=0.3),
    )
    shape = Shape5.of(data.draw(st.integers(1, 2)), taken, data.draw(extents(1, 13)))
    pair, weights = ConvPair(layer.conv, layer.after), data.draw(seeds)
    of_both = weights_of(pair, weights)
    x = data.draw(inputs)(shape, data.draw(seeds))
    other = np.array(data.draw(inputs)(shape._replace(f=made), data.draw(seeds)), order="C")
    second = tiled_reference.local(
        pair.after, of_both, [tiled_reference.local(pair.conv, of_both, [x])]
    )
    right = tiled_reference.local(layer.add, of_both, [second, other])
    run = PAIR.build(layer, shape, in_order(of_both))
    with output_into(other):
        y = run(x, other)
    assert np.shares_memory(y, other)
    np.testing.assert_allclose(y, right, rtol=0, atol=1e-5 * max(1.0, np.abs(right).max()))


def test_a_sum_costs_the_reads_of_its_other_value() -> None:
    first, second = Conv("first", 32, 64, ONE, "gelu"), Conv("second", 64, 32, ONE, "identity")
    shape = Shape5(1, 32, 9, 8, 7)
    plain = PAIR.cost(ConvPair(first, second), shape)
    summed = PAIR.cost(SummedConvPair(first, second, Add("sum")), shape)
    assert summed.bytes_moved == plain.bytes_moved + shape.nbytes
    assert summed.memory == plain.memory


@pytest.mark.parametrize(
    "layer",
    [
        Conv("one", 3, 4, ONE, "relu"),
        ConvPair(Conv("first", 3, 4, ONE, "relu"), Conv("second", 5, 4, ONE, "relu")),
    ],
)
def test_other_layers_are_refused(layer: Conv | ConvPair) -> None:
    assert PAIR.out_shape(layer, Shape5(1, 3, 4, 5, 6)) is None


def test_many_maps_between_are_made_in_parts() -> None:
    assert isinstance(PAIR, PointwisePair)
    pair = ConvPair(Conv("first", 512, 4096, ONE, "gelu"), Conv("second", 4096, 512, ONE, "relu"))
    shape = Shape5(1, 512, 8, 8, 8)
    assert PAIR.cost(pair, shape).memory.workspace < 2 * shape.nbytes + (4 << 20)
