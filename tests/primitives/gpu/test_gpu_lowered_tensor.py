"""Taps summed after the products of tensor cores: division of work, layouts, and results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_layers import H200, chips, devices, needs_compiler
from hypothesis import given
from hypothesis import strategies as st
from kernel_resources import resource_usage
from layers import assert_accurate, extents, random_case, random_input, random_weights, scaled

from bench import reference
from znni.core.shapes import Shape5, Vec3, valid_convolution
from znni.machine.machine import Device
from znni.network.layers import Activation, Conv
from znni.network.weights import ConvWeights
from znni.plans.accuracy import class_of
from znni.primitives.gpu.common.hardware import AMPERE, HOPPER, REGISTERS, Chip
from znni.primitives.gpu.common.number_formats import (
    BFLOAT16_PAIR,
    TF32,
    TensorFormat,
    rounded,
)
from znni.primitives.gpu.lowered_tensor.geometry import (
    MOST_COLUMNS,
    UNIT_MAPS,
    ThreadBlock,
    Tiling,
    blocks_for,
    planes_for,
    tiling_for,
)
from znni.primitives.gpu.lowered_tensor.launch import source
from znni.primitives.gpu.lowered_tensor.primitive import GpuLoweredTensor, primitives
from znni.primitives.gpu.lowered_tensor.weights import weights_by_unit

PROCESSORS = 132
CUBE = Vec3(3, 3, 3)

formats = pytest.mark.parametrize(
    "numbers", [BFLOAT16_PAIR, TF32], ids=lambda numbers: numbers.name
)
kernels = pytest.mark.parametrize(
    "kernel", [Vec3(1, 1, 1), Vec3(2, 2, 2), CUBE, Vec3(4, 4, 4), Vec3(2, 1, 5)], ids=str
)
maps = pytest.mark.parametrize("maps", [(80, 3), (1, 1), (21, 2)], ids=str)


def layer_of(maps: tuple[int, int], kernel: Vec3, activation: Activation = "relu") -> Conv:
    return Conv("layer", *maps, kernel, activation)


@formats
@kernels
@maps
def test_blocks_fit_shared_memory_and_products(
    numbers: TensorFormat, kernel: Vec3, maps: tuple[int, int]
) -> None:
    blocks = blocks_for(layer_of(maps, kernel), numbers, HOPPER)
    assert blocks
    for block in blocks:
        assert block.shared_bytes <= HOPPER.block_shared_bytes
        assert block.columns <= MOST_COLUMNS
        assert block.set_columns % 8 == 0
        assert 0 <= block.set_columns - block.sums < 8
        assert block.units * UNIT_MAPS >= maps[0]
        assert 2 <= block.ring <= block.units + 1
        # Voxels side by side, and two sums further, lie in different banks.
        assert block.pitch % 16 == 4


@given(extents(1, 300), st.integers(1, 70), st.sampled_from([CUBE, Vec3(1, 4, 2)]))
def test_tiles_and_planes_are_the_whole_output(out: Vec3, n: int, kernel: Vec3) -> None:
    tiling = tiling_for(layer_of((80, 3), kernel), BFLOAT16_PAIR, out, HOPPER)
    assert tiling.y * tiling.x <= tiling.block.voxels
    y, x = tiling.tiles(out)
    assert y * (tiling.y - kernel.y + 1) >= out.y > (y - 1) * (tiling.y - kernel.y + 1)
    assert x * (tiling.x - kernel.x + 1) >= out.x > (x - 1) * (tiling.x - kernel.x + 1)
    assert 1 <= planes_for(tiling, Shape5.of(n, 3, out), PROCESSORS) <= out.z


def test_few_images_are_divided_along_z() -> None:
    few, many = Shape5(1, 3, 98, 30, 30), Shape5(512, 3, 98, 30, 30)
    tiling = tiling_for(layer_of((80, 3), CUBE), BFLOAT16_PAIR, few.size, HOPPER)
    assert planes_for(tiling, few, PROCESSORS) < 10
    assert planes_for(tiling, many, PROCESSORS) > 40


@formats
@pytest.mark.parametrize(
    ("maps", "kernel"),
    [((21, 3), CUBE), ((5, 4), Vec3(2, 1, 3)), ((33, 2), Vec3(1, 2, 2))],
    ids=str,
)
def test_sums_of_a_block_are_the_convolution(
    numbers: TensorFormat, maps: tuple[int, int], kernel: Vec3
) -> None:
    """Repeat the kernel's work on its layouts, with the lanes of the instruction, in float64."""
    conv = layer_of(maps, kernel, "identity")
    weight = random_weights(conv).weight
    block = blocks_for(conv, numbers, HOPPER)[0]
    tiling = Tiling(block, 6, 11)
    x = random_input(Shape5(1, maps[0], kernel.z + 4, tiling.y, tiling.x))
    expected = reference.convolution(x, conv, ConvWeights(weight, np.zeros(maps[1], np.float32)))[0]
    found = sums_of(tiling, x[0], weights_by_unit(weight, block))
    tolerance = 1e-5 if numbers is BFLOAT16_PAIR else 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def sums_of(tiling: Tiling, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the output (map, z, y, x) of one tile, plane by plane, as ``convolve`` does."""
    block, kernel = tiling.block, tiling.block.kernel
    voxels = tiling.y * tiling.x
    sets = np.zeros((kernel.z, block.set_columns, voxels))
    out_size = valid_convolution(Vec3(*x.shape[1:]), kernel)
    assert out_size is not None
    out = np.zeros((block.out_maps, *out_size))
    for plane in range(x.shape[1]):
        phase = plane % kernel.z
        sets[phase] = 0
        first = (kernel.z - 1 - phase) * block.set_columns
        right = weights[..., first : first + block.columns, :]
        products = products_of(block, x[:, plane].reshape(len(x), voxels), right)
        sets += products.reshape(sets.shape)
        if plane < kernel.z - 1:
            continue
        complete = sets[(phase + 1) % kernel.z, : block.sums]
        by_tap = complete.reshape(kernel.y, kernel.x, block.out_maps, tiling.y, tiling.x)
        for y, x_ in np.ndindex(kernel.y, kernel.x):
            seen = by_tap[y, x_, :, y : y + out_size.y, x_ : x_ + out_size.x]
            out[:, plane - kernel.z + 1] += seen
    return out


def products_of(block: ThreadBlock, plane: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return columns x voxels: each thread of four has every fourth map, four of a unit."""
    whole = np.zeros((block.units * UNIT_MAPS, plane.shape[1]), np.float32)
    whole[: len(plane)] = plane
    of_threads = whole.reshape(block.units, 4, 4, -1)  # unit, which of its own, thread, voxel
    if block.numbers is TF32:
        left = rounded(of_threads, 13).astype(float)
        by_product = right.astype(float)  # unit, 8 maps, half of them, column, thread
        return np.einsum("uaqv,uacq->cv", left, by_product.reshape(block.units, 4, -1, 4))
    high = rounded(of_threads, 16)
    low = rounded(of_threads - high, 16).astype(float)
    # unit, part, half of the maps, column, thread, one of two side by side
    halves = (right.astype(np.uint32) << 16).view(np.float32).astype(float)
    by_half = halves.reshape(block.units, 2, 2, -1, 4, 2)
    b_high, b_low = by_half[:, 0], by_half[:, 1]
    split = (block.units, 2, 2, 4, -1)
    a_high, a_low = high.astype(float).reshape(split), low.reshape(split)
    return sum(
        np.einsum("uhiqv,uhcqi->cv", a, b)
        for a, b in ((a_high, b_high), (a_low, b_high), (a_high, b_low))
    )


@pytest.mark.parametrize("products", [1, 2])
def test_lanes_read_what_lanes_copied_from_all_banks(products: int) -> None:
    """Repeat the addresses of ``bring`` and of the reads, in words, for a warp's unit."""
    voxels = 16 * products
    copied = 32 // voxels
    there = {}
    for i, lane in np.ndindex(8 * products, 32):
        first = i * copied
        turned = first // 2 % 2 * 8 if copied == 2 else first % 4 * 8
        there[(lane ^ turned) + 32 * i] = first + lane // voxels, lane % voxels
    assert len(there) == UNIT_MAPS * voxels
    for product, i in np.ndindex(products, 8):
        words = []
        for lane in range(32):
            quad = lane % 4
            turned = quad // 2 * 8 if copied == 2 else quad * 8
            reading = quad * voxels + (lane // 4 | turned)
            voxel = product * 16 + i % 2 * 8
            word = (reading ^ voxel) + i // 2 * 4 * voxels
            assert there[word] == (i // 2 * 4 + quad, voxel + lane // 4)
            words.append(word)
        assert len({word % 32 for word in words}) == 32


@given(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False), st.sampled_from([13, 16]))
def test_numbers_are_rounded_to_the_nearest(value: float, bits: int) -> None:
    (found,) = rounded(np.array([value], np.float32), bits)
    assert abs(found - np.float64(value)) <= 2.0 ** (bits - 24) * abs(value)
    assert found.view(np.uint32) & ((1 << bits) - 1) == 0


@formats
@maps
def test_memory_is_input_output_and_weights(numbers: TensorFormat, maps: tuple[int, int]) -> None:
    conv, shape = layer_of(maps, CUBE), Shape5(2, maps[0], 11, 22, 75)
    primitive = GpuLoweredTensor(H200, numbers)
    out = primitive.out_shape(conv, shape)
    assert out == Shape5(2, maps[1], 9, 20, 73)
    memory = primitive.cost(conv, shape).memory
    assert memory.workspace == 0
    assert memory.working == shape.nbytes + out.nbytes
    block = blocks_for(conv, numbers, HOPPER)[0]
    assert (
        memory.resident == weights_by_unit(random_weights(conv).weight, block).nbytes + 4 * maps[1]
    )


def test_what_there_is_no_room_for_is_left_to_others() -> None:
    primitive = GpuLoweredTensor(H200, BFLOAT16_PAIR)
    for maps, kernel in (((80, 80), CUBE), ((80, 3), Vec3(5, 5, 5)), ((4096, 3), CUBE)):
        shape = Shape5(1, maps[0], 20, 20, 20)
        assert primitive.out_shape(layer_of(maps, kernel), shape) is None
    with pytest.raises(ValueError, match="gpu_lowered_tensor does not apply"):
        primitive.cost(layer_of((80, 80), CUBE), Shape5(1, 80, 9, 9, 9))


def test_gpus_before_ampere_have_no_such_instructions() -> None:
    exact, rounded_ = primitives(H200)
    assert (class_of(exact), class_of(rounded_)) == ("float32", "tf32")
    for capability in (80, 89, 100):
        assert len(primitives(replace(H200, capability=capability))) == 2
    assert primitives(replace(H200, capability=75)) == ()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("extent", "numbers", "chip"),
    [
        (2, BFLOAT16_PAIR, HOPPER),
        (2, TF32, AMPERE),
        (4, BFLOAT16_PAIR, AMPERE),  # no other kernel takes as long to compile
        (4, TF32, HOPPER),
    ],
)
def test_sums_stay_in_registers(extent: int, numbers: TensorFormat, chip: Chip) -> None:
    assert_fits(Vec3.of(extent), numbers, chip)


@pytest.mark.slow
@needs_compiler
@formats
@chips
def test_kernels_fit_every_chip(numbers: TensorFormat, chip: Chip) -> None:
    assert_fits(CUBE, numbers, chip)


def assert_fits(kernel: Vec3, numbers: TensorFormat, chip: Chip) -> None:
    block = tiling_for(layer_of((80, 3), kernel), numbers, Vec3(48, 48, 48), chip).block
    usage = resource_usage(source(block, "relu"), chip.architecture)["convolve"]
    assert usage.spills == 0
    assert usage.registers * block.threads <= REGISTERS
    assert usage.shared + block.shared_bytes <= chip.block_shared_bytes


def layers_of_all_kinds() -> list[tuple[Conv, Shape5]]:
    """Few maps and many, odd sizes, tiles of part of a plane and of all, planes of part of z."""
    return [
        (layer_of((80, 3), CUBE), Shape5(2, 80, 12, 50, 37)),
        (layer_of((80, 3), CUBE, "softmax"), Shape5(1, 80, 40, 21, 19)),
        (layer_of((21, 2), Vec3(2, 2, 2), "tanh"), Shape5(3, 21, 9, 33, 64)),
        (layer_of((80, 3), Vec3(4, 4, 4), "elu"), Shape5(1, 80, 9, 17, 45)),
        (layer_of((5, 4), Vec3(3, 1, 2), "sigmoid"), Shape5(1, 5, 8, 30, 71)),
        (layer_of((200, 3), Vec3(2, 3, 3), "identity"), Shape5(1, 200, 8, 20, 31)),
        (layer_of((33, 8), Vec3(2, 2, 2), "leaky_relu"), Shape5(1, 33, 8, 21, 30)),
        (layer_of((1, 1), Vec3(1, 1, 1)), Shape5(300, 1, 3, 5, 7)),
    ]


@pytest.mark.gpu
@formats
@devices
@pytest.mark.parametrize(("layer", "shape"), layers_of_all_kinds())
def test_layers_of_all_kinds_are_the_reference(
    numbers: TensorFormat, device: Device, layer: Conv, shape: Shape5
) -> None:
    primitive = GpuLoweredTensor(device, numbers)
    if primitive.out_shape(layer, shape) is None:
        pytest.skip("shared memory has no room for these weights")
    assert_accurate(primitive, random_case(layer, shape))


@pytest.mark.gpu
@formats
@pytest.mark.parametrize("factor", [1e-25, 1e25])
def test_images_of_any_range_are_the_reference(numbers: TensorFormat, factor: float) -> None:
    case = random_case(layer_of((20, 3), CUBE, "identity"), Shape5(2, 20, 9, 19, 23))
    assert_accurate(GpuLoweredTensor(H200, numbers), scaled(case, factor))
