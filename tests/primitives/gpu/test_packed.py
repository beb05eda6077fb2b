"""Layers of packed values give the reference, on an emulated GPU and on one that is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_gpu import EMULATED
from gpu_layers import assert_fits, chips, needs_compiler
from kernel_resources import resource_usage
from layers import random_case, random_input
from packed_layers import expected, in_both_formats, primitive_for
from packed_values import empty, packed, unpacked

from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
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
    PackedLayer,
    Padding,
    Pool,
    SummedConv,
    Upsample,
)
from znni.primitives.gpu.common.hardware import AMPERE, HOPPER, Chip
from znni.primitives.gpu.common.number_formats import FLOAT16, TensorFormat
from znni.primitives.gpu.direct_tensor.strips import strips_for
from znni.primitives.gpu.direct_tensor.work import Packing
from znni.primitives.gpu.packed import copies, normalization, pointwise, pooling
from znni.primitives.gpu.packed import primitive as packed_layers

ONE, TWO, THREE = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)

SUMMED = SummedConv(Conv("conv", 16, 8, Vec3(2, 1, 3), "identity"), Add("add", "identity"))

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
    "spread": (Pool("layer", TWO, step=ONE, dilation=Vec3(1, 2, 3)), Shape5(1, 8, 5, 8, 9)),
    "sum": (Add("layer", "leaky_relu", 1.7), Shape5(1, 16, 4, 5, 6)),
    "product": (Multiply("layer", "tanh"), Shape5(2, 32, 4, 5, 6)),
    "maximum": (Maximum("layer", "sigmoid"), Shape5(1, 16, 4, 5, 6)),
    "affine": (Affine("layer", 24, "prelu"), Shape5(1, 24, 4, 5, 6)),
    "one tap of each map": (
        Conv("layer", 20, 20, ONE, "leaky_relu", groups=20),
        Shape5(1, 20, 4, 5, 6),
    ),
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
    "transposed as upsampling": (
        ConvTranspose("layer", 40, 16, Vec3(4, 4, 4), "relu", TWO, ONE, ONE).local,
        Shape5(2, 40, 5, 12, 13),
    ),
    "transposed as upsampling in planes": (
        ConvTranspose("layer", 16, 56, Vec3(3, 4, 4), "elu", Vec3(1, 2, 2), ONE, ONE).local,
        Shape5(1, 16, 7, 6, 9),
    ),
    "transposed with other taps for each phase": (
        ConvTranspose("layer", 12, 8, THREE, "leaky_relu", TWO, ONE, Vec3(0, 0, 0)).local,
        Shape5(1, 12, 4, 11, 10),
    ),
    "transposed with phases of no taps": (
        ConvTranspose("layer", 16, 8, Vec3(1, 2, 1), "elu", Vec3(3, 3, 2)).local,
        Shape5(1, 16, 3, 4, 10),
    ),
}


@pytest.mark.slow_cases
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


@pytest.mark.slow
@needs_compiler
@in_both_formats
@chips
def test_sums_stay_in_registers(chip: Chip, numbers: TensorFormat) -> None:
    layer = Conv("layer", 80, 80, THREE, "relu")
    every = (  # one that neither adds nor sums does less than these
        Packing(True, True, 10, adds=True),
        Packing(True, True, 10, sums=True),
        Packing(False, True),
        Packing(True, False, 10),
    )
    for packing in every if chip in (AMPERE, HOPPER) else every[:1]:
        (strip,) = strips_for(layer, numbers, Vec3(64, 64, 64), chip, exact=numbers.parts > 1)
        assert_fits(strip.block, packing=packing)


@pytest.mark.slow
@needs_compiler
@in_both_formats
def test_layers_without_products_need_few_registers(numbers: TensorFormat) -> None:
    """Their source is the same for every chip. They take at most half of the registers."""
    for source, options in (
        (copies.upsampling_source(numbers), copies.upsampling_options(TWO)),
        (pooling.pooling_source(numbers), pooling.pooling_options(Pool("pool", TWO))),
        (pointwise.pointwise_source("gelu", numbers), ("-DOPERATION=ADD", "-DADDS=0")),
        (pointwise.pointwise_source("elu", numbers), ("-DOPERATION=SCALE", "-DADDS=1")),
        (normalization.source(numbers), normalization.options(Normalize("norm", 32, 8))),
    ):
        for usage in resource_usage(source, options=options).values():
            assert usage.spills == 0
            assert usage.registers <= 128


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
        PackedLayer(SUMMED, False, True),
        PackedLayer(SUMMED, True, True, sums=True),
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
