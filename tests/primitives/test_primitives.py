"""Every primitive of the catalogue against the definition of correct."""

from __future__ import annotations

import numpy as np
import pytest
from devices import built
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import (
    CONVOLUTION,
    EXAMPLES,
    POOLED_CONVOLUTION,
    POOLING,
    Case,
    assert_accurate,
    case_for,
    convolution_cases,
    does,
    is_tested,
    pooled_cases,
    pooling_cases,
    primitives_for,
    random_case,
    random_input,
)

from bench import reference
from znni.core.option_types import ACCURACIES
from znni.core.shapes import Shape5, Vec3, offsets
from znni.machine.detect import detect_machine
from znni.network.layers import Conv, Pool, PooledConv
from znni.network.weights import Float32
from znni.plans.primitive import Primitive, convolved, convolved_and_pooled
from znni.primitives.catalogue import catalogue

convolutions = pytest.mark.parametrize("primitive", primitives_for(*CONVOLUTION))
poolings = pytest.mark.parametrize("primitive", primitives_for(*POOLING))
pooled_convolutions = pytest.mark.parametrize("primitive", primitives_for(*POOLED_CONVOLUTION))
everything = pytest.mark.parametrize(
    "primitive", {p.id: p for example in EXAMPLES for p in primitives_for(*example)}.values()
)

# Matrix units of a GPU reach up to so many times its nominal rate, which is that of float32.
MATRIX_UNITS = 16


def run_checked(primitive: Primitive, case: Case) -> Float32:
    """Run twice, and check all that a run promises but its numbers."""
    before = case.x.copy()
    run = built(primitive, case.layer, case.shape, case.weights)
    first = run(case.x)
    y = first.copy()
    first.fill(np.nan)  # an output belongs to the caller, who may do as he likes with it
    second = run(case.x)
    np.testing.assert_array_equal(second, y)
    np.testing.assert_array_equal(case.x, before)
    assert not np.shares_memory(first, second)
    assert second.shape == primitive.out_shape(case.layer, case.shape)
    assert second.dtype == np.float32
    assert second.flags.c_contiguous
    return y


@pytest.mark.slow
@convolutions
@settings(max_examples=20)
@given(data=st.data())
def test_convolution_is_the_reference(primitive: Primitive, data: st.DataObject) -> None:
    case = data.draw(convolution_cases(primitive))
    assert_accurate(primitive, case, run_checked(primitive, case))


REAL_LAYERS = [
    (Conv("first", 1, 80, Vec3(5, 5, 5), "relu"), Shape5(1, 1, 9, 17, 27)),
    (Conv("hidden", 80, 80, Vec3(3, 3, 3), "relu"), Shape5(2, 80, 6, 7, 8)),
    (Conv("uneven", 80, 80, Vec3(4, 2, 3), "relu"), Shape5(2, 80, 6, 7, 8)),
    (Conv("last", 80, 3, Vec3(5, 5, 5), "relu"), Shape5(1, 80, 9, 17, 27)),
    # More than one block of any kind.
    (Conv("many blocks", 13, 11, Vec3(2, 3, 4), "relu"), Shape5(1, 13, 9, 47, 53)),
]


@convolutions
@pytest.mark.parametrize(("layer", "shape"), REAL_LAYERS, ids=[la.name for la, _ in REAL_LAYERS])
def test_layers_of_real_sizes_are_accurate(
    primitive: Primitive, layer: Conv, shape: Shape5
) -> None:
    case = case_for(primitive, layer, shape)
    assert_accurate(primitive, case, run_checked(primitive, case))


@convolutions
@pytest.mark.parametrize("feature", [0, 1])
def test_impulse_gives_the_kernel_back(primitive: Primitive, feature: int) -> None:
    """Three different extents of kernel and image: a flipped or swapped axis can't hide."""
    layer = Conv("layer", 2, 3, Vec3(2, 3, 4), "identity")
    case = case_for(primitive, layer, Shape5(1, 2, 5, 7, 9))
    case.x.fill(0)
    case.x[0, feature, 2, 3, 4] = 1
    y = case.run(primitive)[0] - case.weights.bias[:, None, None, None]
    expected = np.zeros_like(y)
    expected[:, 1:3, 1:4, 1:5] = case.weights.weight[:, feature, ::-1, ::-1, ::-1]
    assert np.abs(y - expected).max() <= primitive.accuracy * np.abs(case.weights.bias).max()


@convolutions
@pytest.mark.parametrize("tap", list(offsets(Vec3(1, 2, 3))), ids=str)
def test_a_single_tap_shifts_the_image(primitive: Primitive, tap: Vec3) -> None:
    layer = Conv("layer", 1, 1, Vec3(1, 2, 3), "identity")
    case = case_for(primitive, layer, Shape5(2, 1, 5, 6, 7))
    case.weights.weight.fill(0)
    case.weights.weight[0, 0, *tap] = 1
    case.weights.bias.fill(0)
    y = case.run(primitive)
    expected = case.x[:, :, :, tap.y :, tap.x :][:, :, :, : y.shape[3], : y.shape[4]]
    assert np.abs(y - expected).max() <= primitive.accuracy * np.abs(case.x).max()


@convolutions
def test_convolution_is_linear(primitive: Primitive) -> None:
    layer = Conv("layer", 3, 5, Vec3(3, 2, 4), "identity")
    case = case_for(primitive, layer, Shape5(2, 3, 9, 7, 11))
    case.weights.bias.fill(0)
    run = built(primitive, layer, case.shape, case.weights)
    a, b = random_input(case.shape, 1), random_input(case.shape, 2)
    combined, apart = run(2 * a - 3 * b), 2 * run(a) - 3 * run(b)
    assert np.abs(combined - apart).max() <= 3 * primitive.accuracy * np.abs(apart).max()


@convolutions
@pytest.mark.parametrize("axis", [2, 3, 4])
def test_a_shifted_input_shifts_the_output(primitive: Primitive, axis: int) -> None:
    layer = Conv("layer", 3, 2, Vec3(3, 2, 4), "relu")
    case = case_for(primitive, layer, Shape5(1, 3, 9, 10, 11))
    run = built(primitive, layer, case.shape, case.weights)
    y, shifted = run(case.x), run(np.roll(case.x, -1, axis))
    inside = range(y.shape[axis] - 1)
    error = np.take(shifted, inside, axis) - np.take(np.roll(y, -1, axis), inside, axis)
    assert np.abs(error).max() <= 2 * primitive.accuracy * np.abs(y).max()


@pytest.mark.slow
@poolings
@settings(max_examples=20)
@given(data=st.data())
def test_pooling_is_the_reference(primitive: Primitive, data: st.DataObject) -> None:
    fragments = primitive.out_shape(*POOLING).n > POOLING[1].n
    case = data.draw(pooling_cases(fragments))
    expected = (reference.pooling_fragments if fragments else reference.pooling)(case.x, case.layer)
    np.testing.assert_array_equal(run_checked(primitive, case), expected)


@pytest.mark.slow
@pooled_convolutions
@settings(max_examples=20)
@given(data=st.data())
def test_pooled_convolution_is_the_reference(primitive: Primitive, data: st.DataObject) -> None:
    case = data.draw(pooled_cases(primitive))
    assert_accurate(primitive, case, run_checked(primitive, case))


@pooled_convolutions
@pytest.mark.parametrize("kernel", [2, 4, 6, 8])
def test_first_layers_are_pooled_accurately(primitive: Primitive, kernel: int) -> None:
    """Several tiles along every axis, the last of which is shifted back."""
    conv = Conv("conv", 1, 40, Vec3.of(kernel), "relu")
    layer = PooledConv(conv, Pool("pool", Vec3(2, 2, 2)))
    case = case_for(primitive, layer, Shape5.of(1, 1, Vec3(37, 43, 53)))
    assert_accurate(primitive, case, run_checked(primitive, case))


@pooled_convolutions
def test_out_shape_of_pooled_convolution(primitive: Primitive) -> None:
    layer, shape = does(primitive)
    assert primitive.out_shape(layer, shape) == convolved_and_pooled(layer, shape)
    assert primitive.out_shape(layer, shape._replace(f=3)) is None  # other maps
    assert primitive.out_shape(layer, shape._replace(y=3)) is None  # no whole window
    many = Conv("conv", 500, 3, layer.conv.kernel, "relu")
    assert primitive.out_shape(PooledConv(many, layer.pool), shape._replace(f=500)) is None
    softmax = Conv("conv", 2, 3, layer.conv.kernel, "softmax")
    assert primitive.out_shape(PooledConv(softmax, layer.pool), shape) is None
    assert primitive.out_shape(*POOLING) is None
    assert primitive.out_shape(*CONVOLUTION) is None


@pooled_convolutions
def test_a_nan_reaches_all_that_sees_it_and_no_other_image(primitive: Primitive) -> None:
    layer, shape = does(primitive)
    case = random_case(layer, shape._replace(n=2))
    case.x[0, 0, 3, 4, 5] = np.nan
    y = case.run(primitive)
    first, last = (Vec3(3, 4, 5) - layer.conv.kernel + 1) // layer.pool.window, Vec3(1, 2, 2)
    assert np.isnan(y[0, :, first.z : last.z + 1, first.y : last.y + 1, first.x : last.x + 1]).all()
    assert np.isfinite(y[1]).all()


@pytest.mark.slow
@everything
def test_images_of_a_batch_do_not_mix(primitive: Primitive) -> None:
    layer, shape = does(primitive)
    together = random_case(layer, shape._replace(n=3))
    y = together.run(primitive)
    for part, x in zip(np.split(y, 3), together.x, strict=True):
        alone = together._replace(x=x[np.newaxis]).run(primitive)
        assert np.abs(part - alone).max() <= 2 * primitive.accuracy * np.abs(y).max()


@everything
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_agrees(primitive: Primitive, threads: int) -> None:
    other = catalogue(detect_machine(ram=4 << 30, threads=threads))[primitive.name]
    layer, shape = does(primitive)
    case = random_case(layer, shape._replace(n=2))
    y = case.run(primitive)
    assert np.abs(case.run(other) - y).max() <= 2 * primitive.accuracy * np.abs(y).max()


@convolutions
def test_out_shape_of_convolution(primitive: Primitive) -> None:
    layer, shape = does(primitive)
    assert primitive.out_shape(layer, shape) == convolved(layer, shape)
    assert primitive.out_shape(layer, shape._replace(f=3)) is None  # other maps
    assert primitive.out_shape(layer, shape._replace(y=2)) is None  # smaller than the kernel
    assert primitive.out_shape(*POOLING) is None


@poolings
def test_out_shape_of_pooling(primitive: Primitive) -> None:
    layer, shape = does(primitive)
    assert primitive.out_shape(layer, shape._replace(y=1)) is None  # smaller than the window
    assert primitive.out_shape(*CONVOLUTION) is None


@everything
def test_cost_counts_input_output_and_work(primitive: Primitive) -> None:
    layer, shape = does(primitive)
    cost, out = primitive.cost(layer, shape), primitive.out_shape(layer, shape)
    assert cost.memory.working >= shape.nbytes + out.nbytes
    assert cost.memory.resident >= 0
    assert cost.bytes_moved >= shape.nbytes + out.nbytes
    assert cost.flops > 0
    assert 0 < cost.efficiency <= (1 if primitive.device.kind == "cpu" else MATRIX_UNITS)


def test_everything_is_tested() -> None:
    tested = {parameter.id for parameter in everything.args[1]}
    known = catalogue(detect_machine(ram=4 << 30, threads=2))
    assert tested == {name for name, primitive in known.items() if is_tested(primitive)}


@everything
def test_every_primitive_is_in_a_class_of_accuracy(primitive: Primitive) -> None:
    assert primitive.accuracy <= max(ACCURACIES.values())


def test_catalogue_goes_by_name_and_has_both_kinds_of_layer() -> None:
    found = catalogue(detect_machine(ram=4 << 30, threads=2))
    assert all(primitive.name == name for name, primitive in found.items())
    assert {"direct", "max_pooling", "max_pooling_fragments"} <= found.keys()
