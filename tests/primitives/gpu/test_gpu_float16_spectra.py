"""Spectra in float16 on a GPU: their order, their ranges, and, on a device, hard inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gpu_layers import H200, devices
from layers import Case, assert_accurate, identity, random_case, scaled

from bench import reference
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.layers import Conv
from znni.network.weights import ConvWeights, Float32
from znni.primitives.gpu import fft_tiled
from znni.primitives.gpu.common.number_formats import FLOAT16
from znni.primitives.gpu.fft_tiled.geometry import frequencies, mean_frequency
from znni.primitives.gpu.fft_tiled.primitive import GpuFftTiled
from znni.primitives.gpu.fft_tiled.ranges import (
    LEAST_EXPONENT,
    LEFT_BITS,
    MOST_EXPONENT,
    RIGHT_BITS,
    left_shift,
    scales_of_kernels,
)

TILE = Vec3(24, 24, 24)
PRIMITIVE = GpuFftTiled(H200, FLOAT16, 24)
LARGEST = 65504.0  # of float16
SMALLEST = 2.0**-126  # of float32's normal numbers


def from_cuda(function: str) -> Callable[..., int]:
    """Return an expression of integers in ``spectrum_float16.cuh`` as a function of Python's."""
    source = Path(fft_tiled.__file__).with_name("spectrum_float16.cuh").read_text()
    found = re.search(rf"int {function}\(([^)]*)\) {{\s*return ([^;]*);", source)
    assert found is not None
    names = ", ".join(declared.split()[-1] for declared in found[1].split(","))
    made = eval(f"lambda {names}: {found[2].replace('/', '//')}")  # our own source
    assert callable(made)
    return made


def test_a_lane_has_the_same_input_maps_on_both_sides_of_a_product() -> None:
    in_map_of = from_cuda("in_map_of")
    maps = [in_map_of(chunk, lane) for chunk in range(20) for lane in range(4)]
    assert sorted(maps) == list(range(80))
    # The left side's 16 bytes number 4 turn + lane are the maps of 4 chunks of the right side.
    for turn in range(5):
        for lane in range(4):
            first = 4 * (4 * turn + lane)
            taken = [in_map_of(4 * turn + chunk, lane) for chunk in range(4)]
            assert taken == list(range(first, first + 4))


def test_a_lane_has_sums_of_four_output_maps_that_lie_together() -> None:
    position_of = from_cuda("position_of")
    map_at = {position_of(out_map): out_map for out_map in range(80)}
    assert sorted(map_at) == list(range(80))
    # Of each 4 complex columns of a product lane i has the sum of number i.
    for turn in range(5):
        for lane in range(4):
            sums = [map_at[16 * turn + 4 * eight + lane] for eight in range(4)]
            first = 16 * turn + 4 * lane
            assert sums == list(range(first, first + 4))


@pytest.mark.parametrize("tile", [Vec3(8, 8, 8), TILE, Vec3(32, 32, 32), Vec3(20, 12, 32)])
def test_no_number_of_a_tile_passes_its_bound(tile: Vec3) -> None:
    assert tile.volume * 2.0 ** left_shift(tile) <= 2.0**LEFT_BITS
    for exponent in (LEAST_EXPONENT, MOST_EXPONENT):
        assert SMALLEST <= 2.0 ** (left_shift(tile) - exponent) < 2.0**128
        assert SMALLEST <= 2.0 ** (exponent - left_shift(tile)) < 2.0**128
    assert 2.0 ** (LEFT_BITS + RIGHT_BITS) < LARGEST


def test_kernels_are_scaled_to_the_top_of_their_range() -> None:
    weight = np.random.default_rng(0).standard_normal((6, 80, 3, 3, 3), np.float32)
    weight *= np.array([1, 1e-6, 1e20, 3, 0, 1e-38], np.float32)[:, None, None, None, None]
    scales = scales_of_kernels(weight, TILE)
    assert scales.dtype == np.float32
    assert (np.frexp(scales)[0] == 0.5).all()
    sums = np.abs(weight.astype(np.float64)).sum(axis=(1, 2, 3, 4)) / TILE.volume * scales
    assert (sums <= 2.0**RIGHT_BITS).all()
    assert (sums[:4] >= 2.0 ** (RIGHT_BITS - 1)).all()
    assert sums[4] == 0


@pytest.mark.parametrize("tile", [Vec3(8, 8, 8), TILE, Vec3(20, 12, 32)])
def test_the_mean_is_the_first_number_of_the_first_row_of_the_first_plane(tile: Vec3) -> None:
    planes = tile.z // 2 - 1  # each of all rows, before those that are conjugate to themselves
    assert mean_frequency(tile) == planes * tile.y * tile.x
    assert mean_frequency(tile) + 2 * (tile.y // 2 + 1) * tile.x == frequencies(tile)
    source = Path(fft_tiled.__file__).with_name("tile_geometry.cuh").read_text()
    assert "constexpr int MEAN = OWN_PLANES * TILE_Y * TILE_X;" in source


def without_bias(case: Case) -> Case:
    return case._replace(weights=ConvWeights(case.weights.weight, np.zeros_like(case.weights.bias)))


def hard_cases() -> dict[str, Case]:
    """Inputs and kernels whose numbers are very large, very small, or both."""
    layer = Conv("layer", 19, 21, Vec3(3, 3, 3), "identity")
    case = random_case(layer, Shape5(1, 19, 24, 46, 46))
    assert case.weights is not None
    spot, half_dark = case.x.copy(), case.x.copy()
    spot[0, 3, 5, 6, 7] = 1e6
    half_dark[..., :26] *= np.float32(1e-5)
    fading = (10.0 ** -np.arange(19.0)).astype(np.float32)[:, None, None, None]
    faint = (10.0 ** (np.arange(21.0) % 9 - 4)).astype(np.float32)[:, None, None, None, None]
    weight, bias = case.weights.weight, case.weights.bias
    return {
        "zero": scaled(case, 0.0),
        "huge": scaled(case, 1e30),
        "tiny": scaled(case, 1e-30),
        "a bright spot": case._replace(x=spot),
        "a dark half": case._replace(x=half_dark),
        "fading maps": case._replace(x=case.x * fading),
        "a mean": case._replace(x=case.x + np.float32(10)),
        "all positive": Case(layer, ConvWeights(np.abs(weight), bias), np.abs(case.x)),
        "faint kernels": Case(layer, ConvWeights(weight * faint, bias), case.x),
    }


def test_the_hard_cases_are_ones_for_tiles_of_24() -> None:
    case = hard_cases()["zero"]
    assert PRIMITIVE.out_shape(case.layer, Shape5(*case.x.shape)) is not None


@pytest.mark.gpu
@devices
@pytest.mark.parametrize("name", hard_cases())
@pytest.mark.parametrize("tile", [Vec3(16, 16, 16), TILE], ids=str)
def test_ranges_suit_whatever_comes(name: str, tile: Vec3, device: Device) -> None:
    primitive = GpuFftTiled(device, FLOAT16, tile)
    case = hard_cases()[name]
    y = case.run(primitive)
    if name == "zero":
        np.testing.assert_array_equal(y, 0)
    else:
        assert_accurate(primitive, case, y)


@pytest.mark.gpu
@devices
@pytest.mark.parametrize("tile", [Vec3(16, 16, 16), TILE], ids=str)
def test_a_mean_is_exact_beyond_float16(tile: Vec3, device: Device) -> None:
    """Rounded to float16, it would have errors of 1e-4, which are the same in all voxels.

    In a tile that reaches beyond the image, the mean is not all: there is an edge.
    """
    primitive = GpuFftTiled(device, FLOAT16, tile)
    case = hard_cases()["a mean"]
    case = without_bias(case._replace(x=case.x + np.float32(90)))
    error, products = error_and_products(case, case.run(primitive))
    step = tile - case.layer.kernel + 1
    whole = tuple(slice(n // s * s) for n, s in zip(error.shape[2:], step, strict=True))
    assert np.abs(error[:, :, *whole]).max() <= 3e-5 * np.abs(products).max()


@pytest.mark.gpu
@devices
def test_each_tile_and_each_output_map_is_as_exact_as_any(device: Device) -> None:
    primitive = GpuFftTiled(device, FLOAT16, 24)
    cases = hard_cases()
    dark = without_bias(cases["a dark half"])  # beside which float32 would round the products
    error, products = error_and_products(dark, dark.run(primitive))
    assert np.abs(error[..., :22]).max() <= 1e-3 * np.abs(products[..., :22]).max()
    faint = without_bias(cases["faint kernels"])
    error, products = error_and_products(faint, faint.run(primitive))
    by_map = (0, 2, 3, 4)
    assert (np.abs(error).max(by_map) <= 1e-3 * np.abs(products).max(by_map)).all()


def error_and_products(case: Case, y: Float32) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of an output, and the sums of products, without the bias."""
    linear = reference.convolution(case.x, identity(case.layer), case.weights)
    assert case.weights is not None
    return y - linear, linear - case.weights.bias[:, None, None, None]
