"""Layers of packed values give the reference, on an emulated GPU and on one that is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EMULATED, Memory, emulated_gpu, needs_emulation
from gpu_layers import chips, needs_compiler
from layers import random_case, random_input, random_weights, scaled
from packed_values import empty, packed, unpacked

from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import resource_usage
from znni.machine.device_arena import ALIGNMENT, DeviceArena
from znni.machine.machine import Device
from znni.machine.packed_arrays import packed_bytes
from znni.network.layers import (
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    Maximum,
    Multiply,
    Normalize,
    Operation,
    PackedLayer,
    Padding,
    Pool,
    SummedConv,
    Upsample,
)
from znni.network.weights import ConvWeights, Weights
from znni.primitives import reference
from znni.primitives.gpu.common.hardware import AMPERE, HOPPER, REGISTERS, Chip
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR, TensorFormat
from znni.primitives.gpu.direct_tensor.geometry import strips_for
from znni.primitives.gpu.direct_tensor.launch import convolution_source
from znni.primitives.gpu.direct_tensor.work import Packing
from znni.primitives.gpu.packed import copies, normalization, pointwise, pooling
from znni.primitives.gpu.packed import primitive as packed_layers

ONE, TWO, THREE = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)

in_both_formats = pytest.mark.parametrize("numbers", [FLOAT16, FLOAT16_PAIR], ids=["", "pairs"])

CONVOLUTIONS = {
    "groups": (Conv("layer", 24, 40, THREE, "relu"), Shape5(1, 24, 7, 12, 21)),
    "several passes": (Conv("layer", 8, 168, Vec3(1, 2, 1), "leaky_relu"), Shape5(1, 8, 5, 9, 11)),
    "batch": (Conv("layer", 16, 8, Vec3(2, 1, 3), "sigmoid"), Shape5(2, 16, 5, 18, 35)),
    "strided": (Conv("layer", 24, 8, THREE, "elu", stride=TWO), Shape5(1, 24, 20, 7, 36)),
    "parts of groups": (Conv("layer", 12, 20, THREE, "sigmoid"), Shape5(1, 12, 5, 9, 21)),
}


def primitive_for(device: Device, layer: Operation, shape: Shape5, last: bool = False) -> Any:
    """The first or the last primitive that computes a layer."""
    found = [it for it in packed_layers.primitives(device) if it.out_shape(layer, shape)]
    return found[-1 if last else 0]


def expected(layer: Any, weights: ConvWeights | None, inputs: Any, *inside: Box) -> Any:
    layers = {} if weights is None else {layer.name: weights}
    return reference.local(layer, Weights(layers, "test"), inputs, *inside)


@in_both_formats
@pytest.mark.parametrize(("reads", "writes"), [(False, True), (True, True), (True, False)], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(
    device: Device, numbers: TensorFormat, name: str, reads: bool, writes: bool
) -> None:
    layer, shape = CONVOLUTIONS[name]
    case = random_case(layer, shape)
    right = expected(layer, case.weights, (case.x,))
    operation = PackedLayer(layer, reads, writes, parts=numbers.parts)
    run = primitive_for(device, operation, shape).build(operation, shape, case.weights)
    x = packed(case.x, 2.0**-3, numbers.parts, gaps=True) if reads else cupy().asarray(case.x)
    out = Shape5(*right.shape)
    y = empty(out, numbers.parts, gaps=True) if writes else cupy().empty(out, np.float32)
    with output_into(y):
        run(x)
    found = unpacked(y) if writes else y.get()
    np.testing.assert_allclose(found, right, rtol=0, atol=numbers.accuracy * np.abs(right).max())


@in_both_formats
@pytest.mark.parametrize("factor", [1e-15, 1e-4, 2e-2, 3e4, 1e15])
def test_numbers_of_any_size_neither_overflow_nor_lose_digits(
    device: Device, numbers: TensorFormat, factor: float
) -> None:
    layer, shape = Conv("layer", 16, 16, THREE, "elu"), Shape5(1, 16, 5, 9, 12)
    case = scaled(random_case(layer, shape), factor)
    second = Conv("second", 16, 8, ONE, "identity")
    weights = random_weights(second)
    weights = ConvWeights(weights.weight, weights.bias * np.float32(factor))
    between = expected(layer, case.weights, (case.x,)).astype(np.float32)
    right = expected(second, weights, (between,))
    first, last = (
        PackedLayer(layer, False, True, parts=numbers.parts),
        PackedLayer(second, True, False, parts=numbers.parts),
    )
    out = Shape5(*between.shape)
    made = primitive_for(device, first, shape).build(first, shape, case.weights)(
        cupy().asarray(case.x)
    )
    found = primitive_for(device, last, out).build(last, out, weights)(made).get()
    np.testing.assert_allclose(
        found, right, rtol=0, atol=2 * numbers.accuracy * np.abs(right).max()
    )


@in_both_formats
@pytest.mark.parametrize("ratio", [2.0**-30, 2.0**-6, 1.0, 2.0**9, 2.0**40])
def test_joined_values_have_scales_of_their_own(
    device: Device, numbers: TensorFormat, ratio: float
) -> None:
    layer, shape = Conv("layer", 40, 16, Vec3(2, 2, 2), "identity"), Shape5(1, 40, 5, 10, 12)
    case = random_case(layer, shape)
    parts = case.x[:, :16], case.x[:, 16:] * np.float32(ratio)
    x = np.concatenate(parts, axis=1)
    right = expected(layer, case.weights, (x,))
    operation = PackedLayer(layer, True, False, parts=numbers.parts)
    join = PackedLayer(Concat("join"), True, True, parts=numbers.parts)
    whole = primitive_for(device, join, shape).build(join, shape, None)(
        packed(parts[0], 2.0**5, numbers.parts), packed(parts[1], 2.0**5 / ratio, numbers.parts)
    )
    found = (
        primitive_for(device, operation, shape).build(operation, shape, case.weights)(whole).get()
    )
    np.testing.assert_allclose(found, right, rtol=0, atol=numbers.accuracy * np.abs(right).max())


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
}


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


NORMED = {
    "a place for each block": (
        Conv("conv", 24, 40, THREE, "identity"),
        Shape5(1, 24, 7, 20, 21),
        8,
    ),
    "more places": (Conv("conv", 8, 16, Vec3(1, 2, 1), "relu"), Shape5(1, 8, 9, 19, 41), 16),
    "several passes": (Conv("conv", 8, 168, ONE, "identity"), Shape5(1, 8, 5, 9, 11), 168),
    "float32 input": (Conv("conv", 3, 8, THREE, "identity"), Shape5(1, 3, 7, 20, 21), 1),
    "strided": (Conv("conv", 16, 24, THREE, "relu", stride=TWO), Shape5(1, 16, 9, 37, 40), 8),
    "first": (Conv("conv", 1, 32, THREE, "identity"), Shape5(1, 1, 11, 23, 45), 32),
    "first in several passes": (Conv("conv", 2, 40, TWO, "elu"), Shape5(1, 2, 6, 11, 19), 40),
    "first of parts": (Conv("conv", 1, 12, THREE, "elu"), Shape5(1, 1, 5, 9, 21), 12),
    "parts of groups": (Conv("conv", 12, 20, TWO, "identity"), Shape5(1, 12, 6, 11, 19), 2),
    "small first": (Conv("conv", 4, 8, ONE, "relu"), Shape5(1, 4, 3, 10, 33), 4),
}


@in_both_formats
@pytest.mark.parametrize("mean", [0.0, 30.0])
@pytest.mark.parametrize("name", NORMED)
def test_a_convolution_adds_up_maps_for_the_norm_after_it(
    device: Device, numbers: TensorFormat, name: str, mean: float
) -> None:
    layer, shape, groups = NORMED[name]
    case = random_case(layer, shape)
    weights = ConvWeights(case.weights.weight, case.weights.bias + np.float32(mean))
    reads = shape.f > 4
    between = expected(layer, weights, (case.x,)).astype(np.float32)
    out = Shape5(*between.shape)
    norm = Normalize("norm", out.f, groups, 1e-5, "leaky_relu")
    trained = random_weights(norm)
    right = expected(norm, trained, (between,))
    first, last = (
        PackedLayer(layer, reads, True, sums=True, parts=numbers.parts),
        PackedLayer(norm, True, True, True, parts=numbers.parts),
    )
    is_first = "first" in name
    run = primitive_for(device, first, shape, is_first).build(first, shape, weights)
    scaled_by = primitive_for(device, last, out).build(last, out, trained)
    x = packed(case.x, 2.0**-3, numbers.parts) if reads else cupy().asarray(case.x)
    y = empty(out, numbers.parts, gaps=True)
    with output_into(y):
        made = run(x)
    sums = made.sums.get()
    count = out.size.volume
    means, squares = sums.sum(axis=0)[: out.f].T / count
    values = between.astype(np.float64).reshape(out.f, count)
    spread = values.std(axis=1)
    assert np.abs(means - values.mean(axis=1)).max() <= numbers.accuracy * spread.max()
    variances, rounded = squares - means**2, 2.0**-24 * (values**2).mean()  # sums in float32
    np.testing.assert_allclose(variances, spread**2, rtol=4 * numbers.accuracy, atol=rounded)
    found = unpacked(scaled_by(made))
    # That of the value between.
    rounding = 2.0 ** (-11 * numbers.parts) * np.abs(values).max() / spread.min()
    atol = (numbers.accuracy + rounding * np.abs(trained.weight).max()) * np.abs(right).max()
    np.testing.assert_allclose(found, right, rtol=0, atol=atol)
    with output_into(y):
        np.testing.assert_array_equal(run(x).sums.get(), sums)


def test_a_norm_with_sums_reads_its_input_once() -> None:
    shape = Shape5(1, 32, 20, 40, 40)
    norm = PackedLayer(Normalize("norm", 32, 32), True, True)
    with_sums = replace(norm, sums=True)
    primitive = primitive_for(EMULATED, with_sums, shape)
    one, two = (primitive.cost(it, shape) for it in (with_sums, norm))
    assert two.bytes_moved == one.bytes_moved + packed_bytes(shape, 1)
    assert one.memory.workspace == 0
    conv = PackedLayer(Conv("conv", 32, 32, THREE, "identity"), True, True)
    dense = primitive_for(EMULATED, conv, shape)
    one, two = (dense.cost(replace(conv, sums=it), shape) for it in (True, False))
    kept = one.memory.resident - two.memory.resident
    assert kept > 0
    assert one.bytes_moved == two.bytes_moved + 2 * kept
    assert one.flops / one.efficiency >= two.flops / two.efficiency


LEFT = {
    "summed before": (Normalize("norm", 32, 32, 1e-5, "leaky_relu"), Shape5(1, 32, 3, 5, 75), True),
    "batch": (Normalize("norm", 24, 3, 1e-2, "elu"), Shape5(2, 24, 3, 4, 16), False),
    "many maps": (Normalize("norm", 56, 56, 1e-5, "prelu"), Shape5(1, 56, 2, 3, 29), False),
    "parts of groups": (Normalize("norm", 12, 3, 1e-5, "elu"), Shape5(2, 12, 2, 3, 29), False),
    "steep": (Normalize("norm", 8, 8, 1e-5, "leaky_relu", 1.7), Shape5(1, 8, 2, 3, 9), False),
}


@in_both_formats
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", LEFT)
def test_a_norm_may_be_left_to_the_layer_after_it(
    device: Device, numbers: TensorFormat, name: str, in_place: bool
) -> None:
    norm, shape, sums = LEFT[name]
    head = Conv("head", shape.f, 3, ONE, "sigmoid")
    case, trained = random_case(norm, shape), random_weights(head)
    x = case.x * np.float32(3) + np.float32(1)
    between = expected(norm, case.weights, (x,)).astype(np.float32)
    right = expected(head, trained, (between,))
    first = PackedLayer(norm, True, True, sums, numbers.parts, leaves=True)
    last = PackedLayer(head, True, False, parts=numbers.parts, norm=norm)
    leave = primitive_for(device, first, shape).build(first, shape, case.weights)
    run = primitive_for(device, last, shape).build(last, shape, trained)
    given = packed(x, 2.0**5, numbers.parts, gaps=True)
    before = given.voxels.get()
    if sums:
        exact = x.astype(np.float64)
        both = (exact**power for power in (1, 2))
        of_maps = np.stack([it.sum(axis=(0, 2, 3, 4)) for it in both], axis=-1)
        given = given._replace(sums=cupy().asarray(np.stack([of_maps / 4, of_maps * 0.75])))
    y = given._replace(records=cupy().zeros(given.records.shape, np.uint32), sums=None)
    if not in_place:
        y = empty(shape, numbers.parts, gaps=True)
    with output_into(y):
        made = leave(given)
    assert made.norm is not None
    np.testing.assert_array_equal(made.voxels.get(), before)
    found = run(made).get()
    np.testing.assert_allclose(
        found, right, rtol=0, atol=2 * numbers.accuracy * np.abs(right).max()
    )


def test_a_norm_that_is_left_moves_no_voxel() -> None:
    shape = Shape5(1, 32, 20, 40, 40)
    norm = Normalize("norm", 32, 32)
    left, whole = (PackedLayer(norm, True, True, leaves=it) for it in (True, False))
    primitive = primitive_for(EMULATED, left, shape)
    one, two = (primitive.cost(it, shape) for it in (left, whole))
    assert one.memory == two.memory
    assert 0 < one.bytes_moved < packed_bytes(shape, 1) + 4 * 5 * 32 + 1
    assert 0 < one.flops < two.flops
    head = PackedLayer(Conv("head", 32, 3, ONE, "identity"), True, False)
    last = primitive_for(EMULATED, replace(head, norm=norm), shape)
    one, two = (last.cost(it, shape) for it in (replace(head, norm=norm), head))
    assert one.bytes_moved == two.bytes_moved
    assert one.flops / one.efficiency > two.flops / two.efficiency


@in_both_formats
def test_inputs_that_are_not_finite_stay_so(device: Device, numbers: TensorFormat) -> None:
    layer, shape = Conv("layer", 8, 8, ONE, "identity"), Shape5(1, 8, 2, 3, 9)
    case = random_case(layer, shape)
    case.x[0, 2, 1, 1, 4] = np.inf
    case.x[0, 5, 0, 2, 3] = np.nan
    right = expected(layer, case.weights, (case.x,))
    operation = PackedLayer(layer, True, True, parts=numbers.parts)
    run = primitive_for(device, operation, shape).build(operation, shape, case.weights)
    found = unpacked(run(packed(case.x, 4.0, numbers.parts)))
    kept = np.isfinite(right)
    np.testing.assert_array_equal(np.isfinite(found), kept)
    np.testing.assert_allclose(found[kept], right[kept], rtol=0, atol=1e-2)


LAYERS = {
    "nearest": (Upsample("layer", Vec3(2, 1, 3)), Shape5(2, 16, 3, 4, 5)),
    "trilinear": (Upsample("layer", Vec3(2, 3, 2), "trilinear"), Shape5(2, 16, 4, 5, 6)),
    "trilinear along two axes": (
        Upsample("layer", Vec3(1, 2, 2), "trilinear"),
        Shape5(1, 24, 3, 4, 5),
    ),
    "maximum of windows": (Pool("layer", TWO, step=TWO), Shape5(1, 24, 6, 9, 11)),
    "overlapping": (Pool("layer", Vec3(3, 2, 3), step=TWO), Shape5(1, 8, 7, 8, 9)),
    "average": (Pool("layer", Vec3(2, 3, 2), "average", step=TWO), Shape5(1, 16, 7, 8, 9)),
    "sum": (Add("layer", "leaky_relu", 1.7), Shape5(1, 16, 4, 5, 6)),
    "product": (Multiply("layer", "tanh"), Shape5(2, 32, 4, 5, 6)),
    "maximum": (Maximum("layer", "sigmoid"), Shape5(1, 16, 4, 5, 6)),
    "affine": (Affine("layer", 24, "prelu"), Shape5(1, 24, 4, 5, 6)),
    "elu": (Affine("layer", 8, "elu"), Shape5(1, 8, 4, 5, 6)),
    "gelu": (Affine("layer", 8, "gelu"), Shape5(1, 8, 4, 5, 6)),
    "join": (Concat("layer"), Shape5(1, 32, 4, 5, 6)),
    "maxima of parts of groups": (Pool("layer", TWO, step=TWO), Shape5(1, 12, 6, 9, 11)),
    "nearest of parts of groups": (Upsample("layer", TWO), Shape5(2, 13, 3, 4, 5)),
    "sum of parts of groups": (Add("layer", "sigmoid"), Shape5(1, 24, 4, 5, 6)),
    "affine map of parts of groups": (Affine("layer", 20, "prelu"), Shape5(1, 20, 4, 5, 6)),
    "norm of parts of groups": (Normalize("layer", 10, 2, 1e-5), Shape5(2, 10, 4, 5, 6)),
    "instance norm of parts": (
        Normalize("layer", 20, 20, 1e-5, "elu"),
        Shape5(2, 20, 4, 5, 6),
    ),
    "transposed from parts of groups": (
        ConvTranspose("layer", 12, 16, TWO, "relu", TWO).local,
        Shape5(1, 12, 3, 5, 9),
    ),
    "instance norm": (Normalize("layer", 24, 24, 1e-5, "leaky_relu"), Shape5(2, 24, 9, 15, 20)),
    "group norm": (Normalize("layer", 16, 2, 1e-2, "sigmoid"), Shape5(1, 16, 4, 5, 6)),
    "sum of several blocks": (Add("layer", "relu"), Shape5(2, 32, 9, 15, 20)),
    "strided": (
        Conv("layer", 32, 16, THREE, "leaky_relu", stride=Vec3(2, 1, 2)),
        Shape5(1, 32, 8, 7, 20),
    ),
    "strided in planes": (
        Conv("layer", 24, 88, Vec3(1, 3, 3), "relu", stride=Vec3(1, 2, 2)),
        Shape5(2, 24, 2, 15, 20),
    ),
    "strided by more than the kernel": (
        Conv("layer", 40, 16, Vec3(2, 1, 5), "elu", stride=Vec3(3, 2, 3)),
        Shape5(1, 40, 15, 8, 31),
    ),
    "strided and short": (Conv("layer", 16, 8, ONE, "elu", stride=TWO), Shape5(2, 16, 5, 6, 9)),
    "transposed": (
        ConvTranspose("layer", 24, 16, TWO, "relu", TWO).local,
        Shape5(1, 24, 3, 5, 9),
    ),
    "transposed in planes": (
        ConvTranspose("layer", 16, 24, Vec3(1, 2, 2), "identity", Vec3(1, 2, 2)).local,
        Shape5(2, 16, 4, 7, 19),
    ),
    "transposed in rows": (
        ConvTranspose("layer", 8, 56, Vec3(1, 1, 2), "leaky_relu", Vec3(1, 1, 2)).local,
        Shape5(1, 8, 4, 7, 9),
    ),
    "transposed with overlaps": (
        ConvTranspose("layer", 16, 8, Vec3(3, 2, 4), "elu", Vec3(2, 2, 3)).local,
        Shape5(1, 16, 5, 6, 7),
    ),
}


@in_both_formats
@pytest.mark.parametrize("name", LAYERS)
def test_other_layers(device: Device, numbers: TensorFormat, name: str) -> None:
    layer, shape = LAYERS[name]
    case = random_case(layer, shape)
    right = expected(layer, case.weights, case.inputs)
    operation = PackedLayer(layer, True, True, parts=numbers.parts)
    run = primitive_for(device, operation, shape).build(operation, shape, case.weights)
    scales = 2.0**4, 2.0**-2
    inputs = [
        packed(x, s, numbers.parts, gaps=True) for x, s in zip(case.inputs, scales, strict=False)
    ]
    y = empty(Shape5(*right.shape), numbers.parts, gaps=True)
    with output_into(y):
        run(*inputs)
    found = unpacked(y)
    np.testing.assert_allclose(found, right, rtol=0, atol=numbers.accuracy * np.abs(right).max())


@pytest.mark.parametrize(
    ("groups", "most"),
    [
        (Shape5(1, 4, 192, 192, 192), 4096),
        (Shape5(1, 8, 96, 96, 96), 4096),
        (Shape5(2, 32, 24, 24, 24), 4096),
        (Shape5(1, 40, 6, 6, 6), 80),
        (Shape5(1, 64, 3, 500, 500), 64 * 977),
    ],
    ids=str,
)
def test_few_blocks_have_all_voxels_of_a_pass(groups: Shape5, most: int) -> None:
    launches: list[Any] = []
    pointwise.launch(lambda *launched: launches.append(launched), groups)
    (((blocks,), (threads,), (columns, shares, *sizes)),) = launches
    assert tuple(sizes) == groups[1:]
    assert blocks == groups.n * groups.f * columns * shares <= most
    assert (columns - 1) * threads < groups.y * groups.x <= columns * threads
    each = -(-groups.z // pointwise.TOGETHER // shares) * pointwise.TOGETHER
    assert (shares - 1) * each < groups.z, "a block has nothing to do"


@in_both_formats
def test_a_sum_may_lie_where_its_first_input_lies(device: Device, numbers: TensorFormat) -> None:
    layer, shape = Add("layer", "relu"), Shape5(1, 32, 4, 5, 6)
    case = random_case(layer, shape)
    operation = PackedLayer(layer, True, True, parts=numbers.parts)
    run = primitive_for(device, operation, shape).build(operation, shape, None)
    first, second = (packed(x, parts=numbers.parts) for x in case.inputs)
    y = first._replace(records=cupy().zeros((2, 2), np.uint32))
    with output_into(y):
        run(first, second)
    right = expected(layer, None, case.inputs)
    np.testing.assert_allclose(unpacked(y), right, rtol=0, atol=1e-2)


@in_both_formats
@pytest.mark.parametrize(
    "inside", [Box(Vec3(1, 2, 0), Vec3(5, 7, 4)), Box(Vec3(9, 0, 0), Vec3(10, 3, 3))]
)
def test_maxima_ignore_samples_beyond_the_volume(
    device: Device, numbers: TensorFormat, inside: Box
) -> None:
    layer = Pool("layer", THREE, step=TWO, padding=Padding(ONE, ONE)).local
    shape = Shape5(1, 8, 7, 8, 9)
    x = random_input(shape)
    right = expected(layer, None, (x,), inside)
    operation = PackedLayer(layer, True, True, parts=numbers.parts)
    run = primitive_for(device, operation, shape).build(operation, shape, None)
    found = unpacked(run(packed(x, parts=numbers.parts), inside))
    np.testing.assert_allclose(found, right, rtol=0, atol=numbers.accuracy * np.abs(x).max())


@needs_compiler
@in_both_formats
@chips
def test_sums_stay_in_registers(chip: Chip, numbers: TensorFormat) -> None:
    layer = Conv("layer", 80, 80, THREE, "relu")
    every = (
        Packing(True, True, 10),
        Packing(True, True, 10, adds=True),
        Packing(True, True, 10, sums=True),
        Packing(False, True),
        Packing(True, False, 10),
    )
    for packing in every if chip in (AMPERE, HOPPER) else every[1:2]:
        (strip,) = strips_for(layer, numbers, Vec3(64, 64, 64), chip, exact=numbers.parts > 1)
        block = strip.block
        source = convolution_source(block, "relu", packing=packing)
        usage = resource_usage(source, chip.architecture)["convolve"]
        assert usage.spills == 0
        assert usage.registers * block.threads <= REGISTERS
        assert usage.shared + block.shared_bytes <= chip.block_shared_bytes
    for source, options in (
        (copies.upsampling_source(numbers), copies.upsampling_options(TWO)),
        (pooling.pooling_source(numbers), pooling.pooling_options(Pool("pool", TWO))),
        (pointwise.pointwise_source("gelu", numbers), ("-DOPERATION=ADD",)),
        (pointwise.pointwise_source("elu", numbers), ("-DOPERATION=SCALE",)),
        (normalization.source(numbers), normalization.options(Normalize("norm", 32, 8))),
    ):
        for usage in resource_usage(source, chip.architecture, options).values():
            assert usage.spills == 0


@needs_compiler
@pytest.mark.parametrize("maps", [(16, 40), (64, 32), (8, 64)], ids=str)
def test_sums_of_few_columns_and_of_few_products_stay_in_registers(maps: tuple[int, int]) -> None:
    layer = Conv("layer", *maps, THREE, "elu")
    block = strips_for(layer, FLOAT16_PAIR, Vec3(64, 64, 64), HOPPER, exact=True)[0].block
    assert block.adds_up
    assert block.subtile.volume == (2 if maps[1] > 40 else 4)
    pointwise = strips_for(replace(layer, kernel=ONE), FLOAT16_PAIR, TWO, HOPPER, exact=True)
    assert not pointwise[0].block.adds_up
    for packing in (
        Packing(True, True, maps[0] // 8),
        Packing(True, True, maps[0] // 8, adds=True),
        Packing(True, True, maps[0] // 8, sums=True),
    ):
        source = convolution_source(block, "elu", packing=packing)
        usage = resource_usage(source, HOPPER.architecture)["convolve"]
        assert usage.spills == 0
        assert usage.registers * block.threads <= REGISTERS
        assert usage.shared + block.shared_bytes <= HOPPER.block_shared_bytes


@needs_compiler
@in_both_formats
@chips
def test_sums_of_strided_and_transposed_convolutions_stay_in_registers(
    chip: Chip, numbers: TensorFormat
) -> None:
    for layer, packing in (
        (Conv("layer", 64, 640, ONE, "leaky_relu"), Packing(True, True, 8, phases=TWO)),
        (Conv("layer", 64, 80, THREE, "leaky_relu", stride=TWO), Packing(True, True, 8)),
    ):
        size, exact = Vec3(64, 64, 64), numbers.parts > 1
        block = strips_for(layer, numbers, size, chip, exact=exact)[0].block
        source = convolution_source(block, "leaky_relu", packing=packing)
        usage = resource_usage(source, chip.architecture)["convolve"]
        assert usage.spills == 0
        assert usage.registers * block.threads <= REGISTERS
        assert usage.shared + block.shared_bytes <= chip.block_shared_bytes


@pytest.mark.parametrize(
    ("name", "size", "taps", "sums"),
    [("transposed", Vec3(6, 10, 18), 1, 8 * 16), ("strided", Vec3(3, 5, 9), 27, 16)],
)
def test_strided_and_transposed_convolutions_move_input_and_output_once(
    name: str, size: Vec3, taps: int, sums: int
) -> None:
    layer, shape = LAYERS[name]
    operation = PackedLayer(layer, True, True)
    primitive = primitive_for(EMULATED, operation, shape)
    cost, out = primitive.cost(operation, shape), primitive.out_shape(operation, shape)
    assert out == Shape5.of(1, 16, size)
    assert cost.bytes_moved == packed_bytes(shape, 1) + packed_bytes(out, 1)
    assert cost.memory.workspace == 0
    weights = 2 * taps * 32 * sums  # 24 input maps are stored as 32
    assert cost.memory.resident == weights + 2 * 4 * sums + 8 * 2


@needs_emulation
def test_memory_is_declared() -> None:
    layer, shape = CONVOLUTIONS["groups"]
    weights = random_weights(layer)
    with emulated_gpu():
        for reads, writes, sums in (
            (False, True, False),
            (True, True, False),
            (True, True, True),
            (True, False, False),
        ):
            operation = PackedLayer(layer, reads, writes, sums)
            primitive = primitive_for(EMULATED, operation, shape)
            memory = primitive.cost(operation, shape).memory
            before = Memory.taken
            run = primitive.build(operation, shape, weights)
            records = 8 * layer.out_features // 8 if writes else 0
            assert Memory.taken - before == memory.resident - records
            arena = DeviceArena(memory.workspace, 2 * ALIGNMENT)
            x = packed(random_input(shape)) if reads else cupy().asarray(random_input(shape))
            out = primitive.out_shape(operation, shape)
            y = empty(out) if writes else cupy().empty(out, np.float32)
            with arena.step(out, None, (0, arena.capacity)), output_into(y):
                run(x)
            given = shape.nbytes // (2 if reads else 1) + out.nbytes // (2 if writes else 1)
            assert memory.working == given + memory.workspace
            assert (memory.workspace == 0) == reads
            del run


@in_both_formats
def test_samples_beyond_the_volume_repeat_its_last_ones(
    device: Device, numbers: TensorFormat
) -> None:
    layer, shape = Upsample("layer", TWO, "trilinear"), Shape5(1, 8, 6, 8, 9)
    inside, beyond = Box(Vec3(1, 2, 0), Vec3(5, 7, 4)), Box(Vec3(9, 0, 0), Vec3(10, 3, 3))
    x = random_input(shape)
    right = expected(layer, None, (x,), inside)
    operation = PackedLayer(layer, True, True, parts=numbers.parts)
    run = primitive_for(device, operation, shape).build(operation, shape, None)
    found = unpacked(run(packed(x, parts=numbers.parts), inside))
    np.testing.assert_allclose(found, right, rtol=0, atol=numbers.accuracy * np.abs(x).max())
    assert not unpacked(run(packed(x, parts=numbers.parts), beyond)).any()


def test_what_is_not_packed_is_left_to_others() -> None:
    shape = Shape5(1, 16, 8, 8, 8)
    for layer in (
        Conv("layer", 16, 8, THREE, "relu"),
        PackedLayer(Conv("layer", 16, 8, THREE, "relu"), False, False),
        PackedLayer(Conv("layer", 16, 8, THREE, "softmax"), True, True),
        PackedLayer(ConvTranspose("layer", 16, 9, TWO, "relu", TWO), True, True),
        PackedLayer(Pool("layer", TWO, step=TWO), True, False),
        PackedLayer(SUMS["batch"][0], False, True),
        PackedLayer(SUMS["batch"][0], True, True, sums=True),
        PackedLayer(Conv("layer", 16, 8, THREE, "relu"), True, False, sums=True),
        PackedLayer(ConvTranspose("layer", 16, 8, TWO, "relu", TWO), True, True, sums=True),
        PackedLayer(Affine("layer", 16), True, True, sums=True),
        PackedLayer(Affine("layer", 16), True, True, leaves=True),
        PackedLayer(Affine("layer", 16), True, True, norm=Normalize("norm", 16, 16)),
        PackedLayer(Conv("layer", 16, 8, THREE, "relu"), True, True, leaves=True),
        PackedLayer(
            Conv("layer", 16, 8, THREE, "relu"), True, False, norm=Normalize("norm", 16, 16)
        ),
        PackedLayer(
            Conv("layer", 16, 8, ONE, "relu"),
            True,
            False,
            norm=Normalize("norm", 16, 16, activation="softmax"),
        ),
        PackedLayer(Multiply("layer", spreads=True), True, True),
    ):
        for primitive in packed_layers.primitives(EMULATED):
            assert primitive.out_shape(layer, shape) is None
    softmax = PackedLayer(Conv("layer", 16, 3, THREE, "softmax"), True, False)
    assert primitive_for(EMULATED, softmax, shape).accuracy == FLOAT16.accuracy
