"""Layers of tiled networks on the host: what primitives compute for a part of a volume."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import LOCAL, MACHINE, Case, random_case, random_input
from local_layers import KINDS, boxes, local_cases

from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.arena import output_into
from znni.network.layers import Activation, Affine, Concat, Layer, Upsample
from znni.network.weights import ConvWeights, Float32, Weights
from znni.plans.primitive import Primitive
from znni.primitives import tiled_reference
from znni.primitives.catalogue import catalogue

PRIMITIVES = catalogue(MACHINE, "cpu")


def primitives_of(layer: Layer, shape: Shape5) -> list[Primitive]:
    """All that do the layer."""
    found = [p for p in PRIMITIVES.values() if p.out_shape(layer, shape) is not None]
    assert found, f"no primitive does {layer} on {shape}"
    return found


def expected(case: Case, inside: Box | None = None) -> Float32:
    """The float64 reference."""
    layers = {} if case.weights is None else {case.layer.name: case.weights}
    return tiled_reference.local(case.layer, Weights(layers, "test"), case.inputs, inside)


def check(case: Case, *inside: Box) -> None:
    """Compare all primitives with the reference, relative to the largest number."""
    right = expected(case, *inside)
    scale = max(1.0, np.abs(right).max(initial=0, where=np.isfinite(right)))
    for primitive in primitives_of(case.layer, case.shape):
        before = case.x.copy()
        out = primitive.out_shape(case.layer, case.shape)
        assert out == right.shape
        run = primitive.build(case.layer, case.shape, case.weights)
        whole = np.full((out.n, out.f + 2, out.z + 1, out.y + 2, out.x + 3), np.nan, np.float32)
        view = whole[:, 1:-1, 1:, 1:-1, 2:-1]
        with output_into(view):
            run(*case.inputs, *inside)
        for y in (run(*case.inputs, *inside), view):
            np.testing.assert_allclose(y, right, rtol=0, atol=1e-5 * scale)
        view.fill(np.nan)
        assert np.isnan(whole).all()
        np.testing.assert_array_equal(case.x, before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_layer_is_the_reference(kind: str, data: st.DataObject) -> None:
    check(data.draw(local_cases(kind)))


@pytest.mark.parametrize("kind", ["upsampling", "poolings", "paddings"])
@settings(max_examples=60)
@given(data=st.data())
def test_samples_beyond_the_volume_do_not_count(kind: str, data: st.DataObject) -> None:
    case = data.draw(local_cases(kind))
    if not case.layer.sees_edges:
        return
    inside = data.draw(boxes(case.shape.size))
    check(case, inside)


@pytest.mark.parametrize("name", ["trilinear", "padded", "edges"])
def test_a_block_beyond_the_volume_is_zero(name: str) -> None:
    layer, shape = LOCAL[name]
    case = random_case(layer, shape)
    (primitive,) = primitives_of(layer, shape)
    run = primitive.build(layer, shape, None)
    assert not run(case.x, Box(Vec3(0, 0, -5), Vec3(9, 9, 0))).any()


@pytest.mark.parametrize("name", ["add", "multiply", "gate", "affine"])
def test_an_output_may_be_the_first_input(name: str) -> None:
    layer, shape = LOCAL[name]
    case = random_case(layer, shape._replace(n=2, z=23, x=99))
    right = expected(case)
    (primitive,) = primitives_of(layer, case.shape)
    run = primitive.build(layer, case.shape, case.weights)
    with output_into(case.inputs[0]):
        run(*case.inputs)
    np.testing.assert_allclose(case.inputs[0], right, rtol=1e-5, atol=1e-5)


def test_inputs_that_lie_in_a_concatenation_stay() -> None:
    layer, shape = LOCAL["concat"]
    (primitive,) = primitives_of(layer, shape)
    y, after = random_input(shape), random_input(shape, 1)[:, 2:]
    before = y[:, :2].copy()
    with output_into(y):
        primitive.build(layer, shape, None)(y[:, :2], after)
    np.testing.assert_array_equal(y, np.concatenate([before, after], axis=1))
    with output_into(y):
        primitive.build(layer, shape, None)(before, y[:, 2:])
    np.testing.assert_array_equal(y, np.concatenate([before, after], axis=1))


def test_three_values_are_concatenated() -> None:
    x = random_input(Shape5(2, 9, 5, 6, 7))
    (primitive,) = primitives_of(Concat("concat"), Shape5(*x.shape))
    run = primitive.build(Concat("concat"), Shape5(*x.shape), None)
    np.testing.assert_array_equal(run(x[:, :2], x[:, 2:3], x[:, 3:]), x)


@pytest.mark.parametrize("activation", ["identity", "relu", "prelu"])
def test_infinite_values_stay_infinite(activation: Activation) -> None:
    layer = Affine("affine", 1, activation)
    x = np.array([np.inf, -np.inf, np.nan, 1], np.float32).reshape(1, 1, 1, 1, 4)
    ones = np.ones(1, np.float32)
    (primitive,) = primitives_of(layer, Shape5(*x.shape))
    y = primitive.build(layer, Shape5(*x.shape), ConvWeights(ones, 0 * ones, ones / 2))(x)
    lowest = 0 if activation == "relu" else -np.inf
    np.testing.assert_array_equal(y.ravel(), [np.inf, lowest, np.nan, 1])


def test_interpolation_keeps_infinite_values_where_it_repeats_them() -> None:
    layer = Upsample("layer", Vec3(1, 2, 2), "trilinear")
    x = np.full((1, 1, 2, 4, 4), np.inf, np.float32)
    (primitive,) = primitives_of(layer, Shape5(*x.shape))
    assert np.isposinf(primitive.build(layer, Shape5(*x.shape), None)(x)).all()
