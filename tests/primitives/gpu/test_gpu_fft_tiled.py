"""Overlap-save on a GPU: its geometry, its generated code, and, on a device, its results."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from gpu_layers import AS_ADA, H200, chips, devices
from layers import assert_accurate, random_case

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.layers import Activation, Conv
from znni.plans.accuracy import class_of
from znni.primitives.common.codelets import Codelet
from znni.primitives.common.dft_codelets import complex_dft, inverse_real_dft, real_dft
from znni.primitives.gpu.common.hardware import AMPERE, Chip
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR, FLOAT16, TensorFormat
from znni.primitives.gpu.fft_tiled.geometry import LENGTHS, frequencies, tile_extents
from znni.primitives.gpu.fft_tiled.primitive import FASTEST, TILES, GpuFftTiled, primitives
from znni.primitives.gpu.fft_tiled.product import product_shape
from znni.primitives.gpu.fft_tiled.spectrum_formats import SPECTRA
from znni.primitives.gpu.fft_tiled.transform import device_function, transform_shape

formats = pytest.mark.parametrize(
    "numbers", [BFLOAT16_PAIR, FLOAT16], ids=lambda numbers: numbers.name
)


def with_numbers(tile: int, numbers: TensorFormat, device: Device = H200) -> GpuFftTiled:
    """Return the primitive of the catalogue."""
    return next(p for p in primitives(device) if (p.tile, p.numbers) == (tile, numbers))


def executed(codelet: Codelet, values: list[float]) -> list[float]:
    """Return the results of a codelet's CUDA C++, run as Python."""
    source = device_function("f", codelet)
    body = source[source.index("{") + 1 : source.rindex("}")]
    statements = re.sub(r"const float |;", "", body).strip()
    numbers = re.sub(r"(\d)f\b", r"\1", statements)
    names: dict[str, object] = {"in_": values, "out": [math.nan] * len(codelet.outputs)}
    exec("\n".join(line.strip() for line in numbers.replace("in[", "in_[").splitlines()), names)
    out = names["out"]
    assert isinstance(out, list)
    return out


def complex_numbers(values: list[float]) -> np.ndarray:
    return np.array(values[::2]) + 1j * np.array(values[1::2])


@pytest.mark.parametrize("length", LENGTHS)
def test_generated_transforms_are_those_of_numpy(length: int) -> None:
    rng = np.random.default_rng(length)
    x = rng.standard_normal(2 * length)
    numbers = complex_numbers(list(x))
    forward = complex_numbers(executed(complex_dft(length, -1), list(x)))
    np.testing.assert_allclose(forward, np.fft.fft(numbers), atol=1e-6)
    wanted = length - 2
    back = complex_numbers(executed(complex_dft(length, 1).first(2 * wanted), list(x)))
    np.testing.assert_allclose(back, length * np.fft.ifft(numbers)[:wanted], atol=1e-6)
    real = complex_numbers(executed(real_dft(length), list(x[:length])))
    np.testing.assert_allclose(real, np.fft.rfft(x[:length]), atol=1e-6)
    given = [part for number in np.fft.rfft(x[:length]) for part in (number.real, number.imag)]
    voxels = executed(inverse_real_dft(length).first(wanted), given)
    np.testing.assert_allclose(voxels, length * x[:wanted], atol=1e-6)


def test_tiles_hold_the_kernel_and_waste_little() -> None:
    kernel = Vec3(3, 5, 7)
    assert tile_extents(16, 12, Vec3(28, 24, 30), kernel) == Vec3(16, 16, 16)
    assert tile_extents(16, 12, Vec3(6, 4, 10), kernel) == Vec3(8, 8, 16)
    assert tile_extents(16, 16, Vec3(28, 24, 30), kernel) is None
    assert tile_extents(8, 0, Vec3(28, 24, 30), Vec3(3, 3, 8)) is None


@formats
@pytest.mark.parametrize(("maps_in", "maps_out"), [(1, 80), (80, 80), (80, 200), (200, 3), (7, 5)])
@chips
def test_products_fit_shared_memory_and_cover_the_maps(
    maps_in: int, maps_out: int, numbers: TensorFormat, chip: Chip
) -> None:
    product = product_shape(maps_in, maps_out, SPECTRA[numbers], chip, 1)
    if product is None:  # left to others
        assert chip.block_shared_bytes < AMPERE.block_shared_bytes
        assert numbers is BFLOAT16_PAIR
        assert maps_in > 128
        return
    assert product.shared_bytes <= chip.block_shared_bytes
    assert product.warps >= 4
    assert product.in_maps >= maps_in
    assert -(-maps_out // product.out_maps) * product.out_maps < maps_out + product.out_maps
    assert product.out_maps * 2 <= 256


def test_layers_of_too_many_maps_are_left_to_others() -> None:
    layer = Conv("wide", 2000, 8, Vec3(3, 3, 3), "relu")
    assert (
        GpuFftTiled(H200, BFLOAT16_PAIR, 16).out_shape(layer, Shape5(1, 2000, 16, 16, 16)) is None
    )


@formats
@pytest.mark.parametrize("maps", [(80, 80), (3, 17), (80, 200)])
def test_workspace_holds_the_spectra_of_a_batch(
    maps: tuple[int, int], numbers: TensorFormat
) -> None:
    layer = Conv("layer", *maps, Vec3(3, 4, 5), "relu")
    shape = Shape5(5, maps[0], 58, 55, 88)
    primitive = with_numbers(16, numbers)
    out = primitive.out_shape(layer, shape)
    assert out == Shape5(5, maps[1], 56, 52, 84)
    memory = primitive.cost(layer, shape).memory
    tile = Vec3(16, 16, 16)
    batches = primitive.work(layer, shape)
    assert batches is not None
    assert batches.count == 5 * 4 * 4 * 7
    assert batches.batch % 64 == 0
    assert batches.batch * batches.batches >= batches.count
    whole = 16 * (7 * 16 + 2 * 9)
    assert frequencies(tile) == whole
    together, number_bytes = (8, 4) if numbers is FLOAT16 else (4, 8)
    padded = [-(-count // together) * together for count in maps]
    kept = max(padded) if batches.in_place else sum(padded)
    exponents = 16 if numbers is FLOAT16 else 0
    assert memory.workspace == batches.batch * (whole * kept * number_bytes + exponents)
    assert memory.working == shape.nbytes + out.nbytes + memory.workspace


def test_what_blocks_read_again_is_counted() -> None:
    """A block makes at most 80 output maps, and each one reads the spectra of all input maps."""
    shape, primitive = Shape5.of(2, 80, Vec3.of(112)), with_numbers(24, FLOAT16)
    seconds = []
    for maps, passes in ((80, 1), (160, 2)):
        layer = Conv("layer", 80, maps, Vec3(3, 3, 3), "relu")
        work, cost = primitive.work(layer, shape), primitive.cost(layer, shape)
        assert work is not None
        assert work.product.out_maps == 80
        of_80_maps = work.count * frequencies(Vec3.of(24)) * 10 * 32
        products = 2 * passes * of_80_maps + work.batches * work.kernel_bytes
        assert work.passes["multiply"].bytes_moved == products
        seconds.append(cost.flops / cost.efficiency)
    assert seconds[1] > 1.5 * seconds[0]


def test_gpus_before_ampere_are_offered_nothing() -> None:
    for numbers, others in ((BFLOAT16_PAIR, []), (FLOAT16, [FASTEST])):
        tiles = [primitive.tile for primitive in primitives(H200) if primitive.numbers is numbers]
        assert tiles == [*TILES, *others]
    for capability in (80, 89, 100):
        assert len(primitives(replace(H200, capability=capability))) == 2 * len(TILES) + 1
    assert not primitives(replace(H200, capability=75))


def test_a_chip_without_room_for_a_map_of_a_tile_declines_it() -> None:
    layer, shape = Conv("layer", 8, 8, Vec3(9, 9, 9), "relu"), Shape5(1, 8, 80, 80, 80)
    for numbers in (BFLOAT16_PAIR, FLOAT16):
        for device, tiles in ((H200, TILES), (AS_ADA, TILES[:-1])):
            fitting = [p.tile for p in primitives(device) if p.out_shape(layer, shape) is not None]
            assert max(t for t in fitting if isinstance(t, int)) == tiles[-1], numbers


@chips
@formats
def test_groups_of_maps_are_divided_among_blocks(numbers: TensorFormat, chip: Chip) -> None:
    """Blocks that share no memory have an exponent each, and write whole numbers of maps."""
    for inverse in (False, True):
        shape = transform_shape(Vec3.of(24), Vec3.of(3), SPECTRA[numbers], chip, inverse=inverse)
        assert shape is not None
        assert shape.own_maps * shape.ranks == SPECTRA[numbers].group
        assert shape.exponent_maps == (SPECTRA[numbers].group if chip.has_clusters else shape.maps)
        assert shape.shared_bytes <= chip.block_shared_bytes
        assert shape.turns == 1 or not (inverse or chip.has_clusters)


def test_only_tf32_and_less_has_spectra_in_float16() -> None:
    catalogue = {p.name: p for p in primitives(H200)}
    assert len(catalogue) == 2 * len(TILES) + 1
    assert class_of(catalogue["gpu_fft_tiled_24"]) == "float32"
    assert class_of(catalogue["gpu_fft_tiled_24_float16"]) == "tf32"


def layers_of_all_kinds() -> list[tuple[int, Conv, Shape5]]:
    cases: list[tuple[int, int, int, Vec3, Activation, Vec3, int]] = [
        (8, 1, 1, Vec3(3, 3, 3), "identity", Vec3(8, 8, 8), 1),
        (12, 3, 5, Vec3(3, 2, 4), "relu", Vec3(11, 19, 13), 2),
        (16, 80, 80, Vec3(3, 3, 3), "relu", Vec3(30, 29, 45), 2),
        (16, 17, 33, Vec3(5, 4, 1), "leaky_relu", Vec3(9, 27, 21), 3),
        (20, 7, 17, Vec3(4, 5, 6), "softmax", Vec3(19, 35, 18), 1),
        (20, 37, 43, Vec3(7, 7, 7), "tanh", Vec3(33, 29, 45), 1),
        (24, 5, 200, Vec3(9, 1, 7), "sigmoid", Vec3(24, 13, 42), 1),
        (28, 80, 3, Vec3(7, 7, 7), "elu", Vec3(50, 29, 28), 1),
        (32, 2, 19, Vec3(9, 8, 7), "identity", Vec3(60, 27, 31), 1),
        (24, 127, 81, Vec3(3, 3, 3), "relu", Vec3(46, 29, 28), 1),
    ]
    return [
        (tile, Conv("layer", maps_in, maps_out, kernel, activation), Shape5.of(n, maps_in, size))
        for tile, maps_in, maps_out, kernel, activation, size, n in cases
    ]


@pytest.mark.gpu
@formats
@devices
@pytest.mark.parametrize(("tile", "layer", "shape"), layers_of_all_kinds())
def test_layers_of_all_kinds_are_the_reference(
    tile: int, layer: Conv, shape: Shape5, numbers: TensorFormat, device: Device
) -> None:
    primitive = with_numbers(tile, numbers, device)
    if primitive.out_shape(layer, shape) is None:
        pytest.skip("shared memory has no room for these tiles or maps")
    assert_accurate(primitive, random_case(layer, shape))


def test_tiles_of_given_extents_are_cut_whatever_the_size() -> None:
    primitive = GpuFftTiled(H200, FLOAT16, FASTEST)
    assert primitive.name == "gpu_fft_tiled_16x20x32_float16"
    layer = Conv("layer", 80, 80, Vec3(3, 3, 3), "relu")
    small, large = (
        primitive.cost(layer, Shape5.of(64, 80, Vec3.of(extent) + 2)) for extent in (6, 12)
    )
    assert large.flops == small.flops  # one tile of 14 x 18 x 30
    for kernel in (Vec3(15, 19, 31), Vec3(16, 3, 3)):
        out = primitive.out_shape(replace(layer, kernel=kernel), Shape5.of(1, 80, Vec3.of(40)))
        assert (out is None) == (kernel.z == 16)


@pytest.mark.gpu
@devices
@pytest.mark.parametrize("maps", [(80, 80), (3, 17)])
def test_tiles_of_given_extents_are_the_reference(maps: tuple[int, int], device: Device) -> None:
    primitive = GpuFftTiled(device, FLOAT16, FASTEST)
    case = random_case(Conv("layer", *maps, Vec3(3, 4, 2), "relu"), Shape5(2, maps[0], 31, 40, 67))
    assert_accurate(primitive, case)
