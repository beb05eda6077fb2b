"""Pooled convolution on tensor cores: its layouts, its division of work, and its results."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from gpu_layers import DEVICE, chips, needs_compiler
from kernel_resources import resource_usage
from layers import assert_accurate, random_case, random_weights

from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Activation, Conv, Pool, PooledConv
from znni.plans.accuracy import class_of
from znni.primitives.gpu.common.hardware import (
    AMPERE,
    COMMON_BLOCK_SHARED,
    HOPPER,
    LANES,
    REGISTERS,
    RESERVED_SHARED,
    Chip,
)
from znni.primitives.gpu.common.number_formats import (
    TF32,
    TF32_PAIR,
    TensorFormat,
)
from znni.primitives.gpu.direct_pooled_tensor.geometry import MAPS, TAPS, Tile, tile_for
from znni.primitives.gpu.direct_pooled_tensor.launch import source, taps_by_lane, weights_by_lane
from znni.primitives.gpu.direct_pooled_tensor.primitive import GpuDirectPooledTensor, primitives

TWO = Vec3(2, 2, 2)
EXACT, ROUNDED = primitives(DEVICE)

both = pytest.mark.parametrize("primitive", [EXACT, ROUNDED], ids=lambda p: p.name)
formats = pytest.mark.parametrize("numbers", [TF32, TF32_PAIR], ids=lambda numbers: numbers.name)
kernels = pytest.mark.parametrize(
    ("maps", "kernel", "window"),
    [(1, TWO, TWO), (1, Vec3(3, 3, 3), TWO), (1, Vec3(4, 4, 4), TWO), (3, TWO, Vec3(1, 3, 2))],
    ids=str,
)


def pooled(
    maps: tuple[int, int], kernel: Vec3, window: Vec3, activation: Activation = "relu"
) -> PooledConv:
    return PooledConv(Conv("conv", *maps, kernel, activation), Pool("pool", window))


def tile_of(
    maps: int, kernel: Vec3, window: Vec3, numbers: TensorFormat, chip: Chip = AMPERE
) -> Tile:
    tile = tile_for(Conv("conv", maps, 80, kernel, "relu"), window, numbers, chip)
    assert tile is not None
    return tile


@formats
@kernels
def test_blocks_fit_a_multiprocessor(
    maps: int, kernel: Vec3, window: Vec3, numbers: TensorFormat
) -> None:
    tile = tile_of(maps, kernel, window, numbers)
    assert tile.shared_bytes <= COMMON_BLOCK_SHARED
    assert 1 <= tile.blocks <= AMPERE.shared_bytes // (tile.shared_bytes + RESERVED_SHARED)
    assert tile.threads == LANES * tile.out.z * tile.out.y
    assert tile.seen == tile.out * window + kernel - 1
    assert tile.image_bytes % 8 == 0
    assert tile.seen.x <= tile.pitch < tile.seen.x + LANES


@formats
def test_right_sides_of_even_kernels_are_read_without_waiting(numbers: TensorFormat) -> None:
    for kernel in (TWO, Vec3(4, 4, 4)):
        tile = tile_of(1, kernel, TWO, numbers)
        taps = taps_by_lane(tile)
        for step, i in np.ndindex(tile.steps, 2):
            words = {int(tap) + 2 * voxel for tap in taps[step, :, i] for voxel in range(8)}
            assert len({word % LANES for word in words}) == len(words)


@formats
@kernels
def test_products_of_lanes_are_the_convolution(
    maps: int, kernel: Vec3, window: Vec3, numbers: TensorFormat
) -> None:
    """Repeat the kernel's work on its layouts, with the lanes of the instruction, in float64."""
    tile = tile_of(maps, kernel, window, numbers)
    conv = Conv("conv", maps, 21, kernel, "identity")
    weight = random_weights(conv).weight
    lanes, taps = weights_by_lane(weight, tile), taps_by_lane(tile)
    image = np.zeros((maps, tile.seen.z, tile.seen.y, tile.pitch))
    image[..., : tile.seen.x] = np.random.default_rng(0).random((maps, *tile.seen))
    seen = image.ravel()
    voxels = np.arange(8) * window.x
    left, right = np.zeros((2, MAPS, TAPS)), np.zeros((TAPS, 8))
    for group in range(len(lanes)):
        sums = np.zeros((MAPS, 8))
        for step in range(tile.steps):
            for lane in range(LANES):
                row, column = lane // 4, lane % 4
                of_lane = lanes[group, step, :, lane].astype(float)
                for i in range(4):
                    left[: numbers.parts, row + i % 2 * 8, column + i // 2 * 4] = of_lane[:, i]
                right[column] = seen[taps[step, column, 0] + voxels]
                right[column + 4] = seen[taps[step, column, 1] + voxels]
            sums += left.sum(0) @ right
        valid = [np.s_[:, z : z + 1, y : y + 1] for z, y, _ in np.ndindex(kernel)]
        of_taps = [
            image[slices][..., x + voxels].reshape(maps, 8)
            for slices, (_, _, x) in zip(valid, np.ndindex(kernel), strict=True)
        ]
        of_group = weight[group * MAPS : (group + 1) * MAPS].reshape(-1, maps, kernel.volume)
        expected = np.einsum("gmt,tmv->gv", of_group.astype(float), np.array(of_taps))
        tolerance = (1e-6 if numbers is TF32_PAIR else 1e-3) * np.abs(expected).max()
        np.testing.assert_allclose(sums[: len(expected)], expected, rtol=0, atol=tolerance)
        assert not sums[len(expected) :].any()


@both
@kernels
def test_memory_is_input_output_and_weights(
    primitive: GpuDirectPooledTensor, maps: int, kernel: Vec3, window: Vec3
) -> None:
    layer, shape = pooled((maps, 21), kernel, window), Shape5(2, maps, 21, 22, 75)
    out = primitive.out_shape(layer, shape)
    assert out is not None
    memory = primitive.cost(layer, shape).memory
    assert memory.workspace == 0
    assert memory.working == 4 * (prod(shape) + prod(out))
    tile = tile_of(maps, kernel, window, primitive.numbers)
    ordered = weights_by_lane(random_weights(layer.conv).weight, tile)
    assert memory.resident == ordered.nbytes + taps_by_lane(tile).nbytes + 4 * 2 * MAPS


def test_what_others_do_better_is_left_to_them() -> None:
    shape = Shape5(1, 1, 40, 40, 40)
    for maps, kernel, window, activation in (
        ((1, 8), Vec3(6, 6, 6), TWO, "relu"),
        ((1, 8), TWO, Vec3(3, 3, 2), "relu"),
        ((1, 8), TWO, TWO, "softmax"),
    ):
        layer = pooled(maps, kernel, window, activation)
        assert EXACT.out_shape(layer, shape) is None
    assert EXACT.out_shape(layer.conv, shape) is None
    with pytest.raises(ValueError, match="gpu_direct_pooled_tensor does not apply"):
        EXACT.cost(layer, shape)


def test_older_gpus_multiply_no_tf32_and_rounded_numbers_are_in_its_class() -> None:
    assert primitives(replace(DEVICE, capability=75)) == ()
    assert (class_of(EXACT), class_of(ROUNDED)) == ("float32", "tf32")


@pytest.mark.slow_cases
@needs_compiler
@formats
@kernels
def test_sums_stay_in_registers(
    maps: int, kernel: Vec3, window: Vec3, numbers: TensorFormat
) -> None:
    assert_fits(tile_of(maps, kernel, window, numbers, HOPPER))


@pytest.mark.slow_cases
@needs_compiler
@formats
@chips
def test_kernels_fit_every_chip(numbers: TensorFormat, chip: Chip) -> None:
    assert_fits(tile_of(1, TWO, TWO, numbers, chip))


def assert_fits(tile: Tile) -> None:
    source_, architecture = source(tile, "relu"), tile.chip.architecture
    usage = resource_usage(source_, architecture)["convolve_and_pool"]
    assert usage.spills == 0
    assert usage.registers * tile.threads * tile.blocks <= REGISTERS
    assert usage.shared + tile.shared_bytes <= tile.chip.block_shared_bytes


def layers_of_all_kinds() -> list[tuple[PooledConv, Shape5]]:
    return [
        (pooled((1, 80), TWO, TWO), Shape5(1, 1, 27, 35, 203)),
        (pooled((1, 21), Vec3(3, 3, 3), TWO, "elu"), Shape5(2, 1, 15, 21, 35)),
        (pooled((1, 17), Vec3(4, 4, 4), TWO, "tanh"), Shape5(1, 1, 14, 33, 150)),
        (pooled((4, 5), Vec3(2, 3, 1), Vec3(1, 3, 2), "identity"), Shape5(3, 4, 9, 14, 66)),
        (pooled((2, 16), Vec3(1, 5, 4), Vec3(3, 1, 1), "sigmoid"), Shape5(1, 2, 13, 17, 29)),
        (pooled((1, 3), Vec3(1, 1, 1), Vec3(2, 2, 4), "leaky_relu"), Shape5(1, 1, 8, 8, 8)),
    ]


@pytest.mark.gpu
@both
@pytest.mark.parametrize(("layer", "shape"), layers_of_all_kinds())
def test_layers_of_all_kinds_are_the_reference(
    primitive: GpuDirectPooledTensor, layer: PooledConv, shape: Shape5
) -> None:
    assert_accurate(primitive, random_case(layer, shape))
