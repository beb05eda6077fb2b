"""Convolutions of packed values: their results, their registers and their memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import EMULATED, Memory, emulated_gpu, needs_emulation
from gpu_layers import assert_fits, chips, needs_compiler
from layers import random_case, random_input, random_weights, scaled
from packed_layers import expected, in_both_formats, primitive_for
from packed_values import empty, packed, unpacked

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.device_arena import ALIGNMENT, DeviceArena
from znni.machine.machine import Device
from znni.machine.packed_arrays import RECORD_BYTES
from znni.network.layers import (
    Concat,
    Conv,
    ConvTranspose,
    PackedLayer,
)
from znni.network.weights import ConvWeights
from znni.primitives.gpu.common.hardware import HOPPER, Chip
from znni.primitives.gpu.common.number_formats import FLOAT16_PAIR, TensorFormat
from znni.primitives.gpu.direct_tensor.strips import strips_for
from znni.primitives.gpu.direct_tensor.work import Packing

ONE, TWO, THREE = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)

CONVOLUTIONS = {
    "groups": (Conv("layer", 24, 40, THREE, "relu"), Shape5(1, 24, 7, 12, 21)),
    "several passes": (Conv("layer", 8, 168, Vec3(1, 2, 1), "leaky_relu"), Shape5(1, 8, 5, 9, 11)),
    "batch": (Conv("layer", 16, 8, Vec3(2, 1, 3), "sigmoid"), Shape5(2, 16, 5, 18, 35)),
    "strided": (Conv("layer", 24, 8, THREE, "elu", stride=TWO), Shape5(1, 24, 20, 7, 36)),
    "parts of groups": (Conv("layer", 12, 20, THREE, "sigmoid"), Shape5(1, 12, 5, 9, 21)),
}


@pytest.mark.slow_cases
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


@pytest.mark.slow_cases
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


@pytest.mark.slow_cases
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


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("maps", [(16, 40), (64, 32), (8, 64)], ids=str)
def test_sums_of_few_columns_and_of_few_products_stay_in_registers(maps: tuple[int, int]) -> None:
    layer = Conv("layer", *maps, THREE, "elu")
    block = strips_for(layer, FLOAT16_PAIR, Vec3(64, 64, 64), HOPPER, exact=True)[0].block
    assert block.adds_up
    assert block.subtile.volume == (4 if maps[1] == 40 else 2)
    pointwise = strips_for(replace(layer, kernel=ONE), FLOAT16_PAIR, TWO, HOPPER, exact=True)
    assert not pointwise[0].block.adds_up
    # Each does all that a convolution does that neither adds nor sums.
    assert_fits(block, "elu", Packing(True, True, maps[0] // 8, adds=True))
    assert_fits(block, "elu", Packing(True, True, maps[0] // 8, sums=True))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("maps", [(16, 16), (48, 24), (64, 32)], ids=str)
@in_both_formats
def test_sums_of_each_tap_stay_in_registers(maps: tuple[int, int], numbers: TensorFormat) -> None:
    layer = Conv("layer", *maps, THREE, "elu")
    exact = numbers.parts > 1
    block = strips_for(layer, numbers, Vec3(128, 128, 128), HOPPER, exact=exact)[0].block
    assert block.stacks_taps
    # Each does all that a convolution does that neither adds nor sums.
    assert_fits(block, "elu", Packing(True, True, maps[0] // 8, adds=True))
    assert_fits(block, "elu", Packing(True, True, maps[0] // 8, sums=True))


@pytest.mark.slow
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
        assert_fits(block, "leaky_relu", packing)


@needs_emulation
@in_both_formats
def test_memory_of_transposed_convolutions_is_declared(numbers: TensorFormat) -> None:
    layer = ConvTranspose("layer", 24, 16, Vec3(4, 4, 4), "relu", TWO, ONE, ONE).local
    operation, shape = PackedLayer(layer, True, True, parts=numbers.parts), Shape5(1, 24, 5, 6, 12)
    with emulated_gpu():
        primitive = primitive_for(EMULATED, operation, shape)
        memory, before = primitive.cost(operation, shape).memory, Memory.taken
        run = primitive.build(operation, shape, random_weights(layer))
        assert Memory.taken - before == memory.resident - 2 * RECORD_BYTES
        arena = DeviceArena(memory.workspace, 2 * ALIGNMENT)
        x = packed(random_input(shape), parts=numbers.parts)
        y = empty(primitive.out_shape(operation, shape), numbers.parts)
        with arena.step((0, arena.capacity)), output_into(y):
            run(x)
    assert memory.workspace == 0
    assert memory.working == x.voxels.nbytes + y.voxels.nbytes


@pytest.mark.slow
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
            with arena.step((0, arena.capacity)), output_into(y):
                run(x)
            given = shape.nbytes // (2 if reads else 1) + out.nbytes // (2 if writes else 1)
            assert memory.working == given + memory.workspace
            assert (memory.workspace == 0) == reads
            del run
