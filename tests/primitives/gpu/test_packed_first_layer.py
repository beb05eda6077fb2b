"""First layers whose output is packed: their layouts, their division of work, and their results."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest
from emulated_gpu import EMULATED, ORDERS, Memory, emulated_gpu, needs_emulation
from gpu_layers import H200, chips, most_spills, needs_compiler
from kernel_resources import resource_usage
from layers import Case, random_case, random_weights, scaled
from packed_layers import in_both_formats
from packed_values import empty, unpacked

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.device_arena import ALIGNMENT, DeviceArena
from znni.machine.machine import Device
from znni.network.layers import Activation, Conv, PackedLayer
from znni.network.weights import Weights
from znni.plans.nominal_time import nominal_time
from znni.primitives import reference, tiled_reference
from znni.primitives.gpu.common.hardware import (
    AMPERE,
    COMMON_BLOCK_SHARED,
    REGISTERS,
    RESERVED_SHARED,
    Chip,
    turns,
)
from znni.primitives.gpu.common.number_formats import FLOAT16, TensorFormat
from znni.primitives.gpu.packed import first_layer
from znni.primitives.gpu.packed.convolution import GpuPackedConvolution
from znni.primitives.gpu.packed.first_layer import (
    GpuPackedFirstLayer,
    pairs_by_lane,
    source,
    weights_by_lane,
)
from znni.primitives.gpu.packed.first_layer_tiles import TILES, Tile, tile_for

ONE, TWO, THREE, FLAT = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3), Vec3(1, 5, 5)
orders = cycle(ORDERS)

CASES = {
    "one map": (Conv("layer", 1, 32, THREE, "leaky_relu"), Shape5(1, 1, 7, 15, 40)),
    "flat": (Conv("layer", 1, 16, FLAT, "elu"), Shape5(2, 1, 3, 21, 25)),
    "two maps, several passes": (Conv("layer", 2, 40, TWO, "relu"), Shape5(1, 2, 6, 11, 19)),
    "three maps": (Conv("layer", 3, 24, Vec3(2, 1, 4), "identity"), Shape5(2, 3, 5, 9, 20)),
    "four maps of a voxel": (Conv("layer", 4, 8, ONE, "sigmoid"), Shape5(1, 4, 3, 10, 33)),
    "parts of groups": (Conv("layer", 1, 12, THREE, "relu"), Shape5(1, 1, 5, 9, 20)),
    "large": (Conv("layer", 1, 8, Vec3.of(7), "identity"), Shape5(1, 1, 8, 9, 24)),
}


def packing(layer: Conv, parts: int = 1) -> PackedLayer:
    return PackedLayer(layer, reads=False, writes=True, parts=parts)


def expected(layer: Conv, case: Case) -> reference.Float64:
    return tiled_reference.local(layer, Weights({layer.name: case.weights}, "test"), (case.x,))


def tile_of(
    layer: Conv, chip: Chip = AMPERE, numbers: TensorFormat = FLOAT16, *, sums: bool = False
) -> Tile:
    tile = tile_for(layer, Vec3.of(192), chip, numbers, sums=sums)
    assert tile is not None
    return tile


def is_the_reference(
    device: Device, layer: Conv, shape: Shape5, numbers: TensorFormat, factor: float = 1.0
) -> None:
    case = scaled(random_case(layer, shape), factor)
    right = expected(layer, case)
    run = GpuPackedFirstLayer(device, numbers).build(
        packing(layer, numbers.parts), shape, case.weights
    )
    y = empty(Shape5(*right.shape), numbers.parts, gaps=True)
    with output_into(y):
        run(cupy().asarray(case.x))
    np.testing.assert_allclose(
        unpacked(y), right, rtol=0, atol=numbers.accuracy * np.abs(right).max()
    )


@pytest.mark.slow_cases
@in_both_formats
@pytest.mark.parametrize("name", CASES)
def test_first_layers(device: Device, numbers: TensorFormat, name: str) -> None:
    is_the_reference(device, *CASES[name], numbers)


@pytest.mark.slow_cases
@needs_emulation
@pytest.mark.parametrize("size", TILES, ids=str)
def test_tiles_of_any_form(size: Vec3, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, shape = Conv("layer", 1, 8, Vec3(2, 3, 2), "relu"), Shape5(1, 1, 6, 37, 35)
    tile = Tile(AMPERE, 1, layer.kernel, 1, 1, size)
    monkeypatch.setattr(first_layer, "tile_for", lambda *_, **__: tile)
    with emulated_gpu(next(orders)):
        is_the_reference(EMULATED, layer, shape, FLOAT16)


@in_both_formats
@pytest.mark.parametrize("factor", [1e-15, 1e-4, 3e4, 1e15])
def test_numbers_of_any_size(device: Device, numbers: TensorFormat, factor: float) -> None:
    layer, shape = Conv("layer", 1, 8, THREE, "relu"), Shape5(1, 1, 5, 9, 20)
    is_the_reference(device, layer, shape, numbers, factor)


@in_both_formats
def test_only_voxels_that_see_it_are_not_finite(device: Device, numbers: TensorFormat) -> None:
    layer, shape = Conv("layer", 2, 8, Vec3(1, 2, 3), "identity"), Shape5(1, 2, 3, 9, 20)
    case = random_case(layer, shape)
    case.x[0, 1, 1, 4, 7], case.x[0, 0, 2, 8, 19] = np.inf, np.nan
    right = expected(layer, case)
    run = GpuPackedFirstLayer(device, numbers).build(
        packing(layer, numbers.parts), shape, case.weights
    )
    found = unpacked(run(cupy().asarray(case.x)))
    kept = np.isfinite(right)
    np.testing.assert_array_equal(np.isfinite(found), kept)
    np.testing.assert_allclose(found[kept], right[kept], rtol=0, atol=1e-2)


@in_both_formats
@pytest.mark.parametrize("kernel", [ONE, TWO, THREE, FLAT, Vec3(2, 3, 4)], ids=str)
def test_lanes_have_all_weights_at_their_places(kernel: Vec3, numbers: TensorFormat) -> None:
    layer = Conv("layer", 2, 40, kernel, "relu")
    tile = tile_of(layer, numbers=numbers)
    weight = numbers.split(random_weights(layer).weight).sum(axis=0)
    lanes = weights_by_lane(weight, tile).astype(np.float32).sum(axis=2)
    places = pairs_by_lane(tile)
    assert (tile.groups, tile.passes) == (3, 2)
    size = tile.seen._replace(x=tile.pitch)
    found = np.zeros((48, 2, *size), np.float32)
    for index in np.ndindex(lanes.shape):
        step, group, lane, pair, tap = index[1:]
        place = np.unravel_index(places[step, lane % 4, pair] + tap, (2, *size))
        if lanes[index]:
            found[(3 * index[0] + group) * 8 + lane // 4, *place] += lanes[index]
    right = np.zeros_like(found)
    right[:40, :, : kernel.z, : kernel.y, : kernel.x] = weight
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("kernel", [THREE, FLAT, Vec3(3, 5, 5), Vec3.of(7)], ids=str)
def test_left_sides_are_read_without_waiting(kernel: Vec3) -> None:
    tile = tile_of(Conv("layer", 1, 32, kernel, "relu"))
    places = pairs_by_lane(tile)
    for step, pair in np.ndindex(tile.steps, 2):
        words = (place + voxel for place in places[step, :, pair] for voxel in range(8))
        assert turns([words]) == 1


def test_products_sum_over_taps() -> None:
    steps = {k: tile_of(Conv("layer", 1, 32, k, "relu")).steps for k in (THREE, FLAT, Vec3.of(5))}
    assert steps == {THREE: 3, FLAT: 2, Vec3.of(5): 10}  # direct convolution: 27, 25 and 125


@pytest.mark.slow
@needs_compiler
@in_both_formats
@chips
def test_kernels_fit_every_chip(chip: Chip, numbers: TensorFormat) -> None:
    every: tuple[tuple[int, int, Vec3, Activation], ...] = (
        (1, 32, THREE, "leaky_relu"),
        (1, 16, FLAT, "elu"),
        (4, 64, Vec3.of(5), "relu"),
        (1, 8, TWO, "tanh"),
    )
    layers = every if chip == AMPERE else every[:2]
    for (maps, features, kernel, activation), sums in product(layers, (False, True)):
        layer = Conv("layer", maps, features, kernel, activation)
        tile = tile_of(layer, chip, numbers, sums=sums)
        for usage in resource_usage(source(tile, activation), chip.architecture).values():
            assert usage.spills <= most_spills(0, 88)
            assert usage.registers * tile.macros["THREADS"] * tile.blocks <= REGISTERS
            shared = usage.shared + tile.shared_bytes
            assert shared <= COMMON_BLOCK_SHARED
            assert tile.blocks * (shared + RESERVED_SHARED) <= chip.shared_bytes


@in_both_formats
@needs_emulation
@pytest.mark.parametrize("sums", [False, True])
def test_memory_is_declared(numbers: TensorFormat, sums: bool) -> None:
    layer, shape = CASES["two maps, several passes"]
    operation = replace(packing(layer, numbers.parts), sums=sums)
    with emulated_gpu():
        primitive = GpuPackedFirstLayer(EMULATED, numbers)
        memory = primitive.cost(operation, shape).memory
        before = Memory.taken
        run = primitive.build(operation, shape, random_weights(layer))
        assert Memory.taken - before == memory.resident - layer.out_features  # its records
        arena = DeviceArena(memory.workspace, 2 * ALIGNMENT)
        out = primitive.out_shape(operation, shape)
        assert out is not None
        x, y = cupy().zeros(shape), empty(out, numbers.parts)
        with arena.step((0, arena.capacity)), output_into(y):
            run(x)
        assert memory.working == shape.nbytes + numbers.parts * out.nbytes // 2 + memory.workspace


def test_it_is_the_fastest_for_few_maps_and_declines_others() -> None:
    shape, primitive = Shape5(1, 1, 194, 194, 194), GpuPackedFirstLayer(H200)
    layer = packing(Conv("layer", 1, 32, THREE, "relu"))
    other = GpuPackedConvolution(H200)
    assert nominal_time(primitive, primitive.cost(layer, shape)) < nominal_time(
        other, other.cost(layer, shape)
    )
    for declined in (
        Conv("layer", 1, 32, THREE, "relu"),
        PackedLayer(layer.layer, False, False),
        packing(Conv("layer", 1, 32, THREE, "softmax")),
        packing(Conv("layer", 5, 32, THREE, "relu")),
        packing(Conv("layer", 1, 32, Vec3.of(70), "relu")),
    ):
        where = shape._replace(f=declined.in_features if isinstance(declined, Conv) else 1)
        assert primitive.out_shape(declined, where) is None
    row = Conv("layer", 1, 32, Vec3(1, 1, 300), "relu")
    assert primitive.out_shape(packing(row), Shape5(1, 1, 4, 4, 400)) is None


def test_tiles_have_whole_rows_for_each_warp() -> None:
    for out in TILES:
        tile = Tile(AMPERE, 1, THREE, 1, 1, out)
        rows = tile.units // (out.x // 16)
        assert rows * out.x // 16 == tile.units
        assert out.y % rows == 0
        assert 8 * rows == out.z * out.y
