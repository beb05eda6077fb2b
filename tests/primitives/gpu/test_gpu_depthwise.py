"""Depthwise convolution on a GPU gives the reference, and fits the chips."""

from __future__ import annotations

import pytest
from gpu_layers import H200, chips, needs_compiler
from hypothesis import given
from kernel_resources import resource_usage
from layers import extents, random_case
from local_primitives import check

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.layers import Conv, ConvTranspose
from znni.primitives.gpu.common.hardware import COMMON_BLOCK_SHARED, REGISTERS, Chip
from znni.primitives.gpu.depthwise import primitive as depthwise
from znni.primitives.gpu.depthwise.geometry import Taps, division

ONE, TWO, THREE, FIVE, SEVEN = map(Vec3.of, (1, 2, 3, 5, 7))


def conv(kernel: Vec3, stride: Vec3 = ONE, maps: int = 5, repeats: int = 1) -> Conv:
    """Return a depthwise convolution."""
    return Conv("layer", maps, repeats * maps, kernel, "gelu", stride, groups=maps)


def transposed(kernel: Vec3, stride: Vec3 = TWO, maps: int = 5, repeats: int = 1) -> ConvTranspose:
    """Return a transposed depthwise convolution that keeps the middle of its output."""
    cut = (kernel - 1) // 2
    return ConvTranspose(
        "layer", maps, repeats * maps, kernel, "elu", stride, cut, cut, groups=maps
    )


LAYERS: dict[str, tuple[Conv | ConvTranspose, Shape5]] = {
    "3^3": (conv(THREE), Shape5(2, 5, 9, 19, 40)),
    "5^3, two maps for one": (conv(FIVE, repeats=2), Shape5(1, 5, 13, 9, 38)),
    "7^3": (conv(SEVEN), Shape5(1, 5, 19, 11, 20)),
    "3^3, strided": (conv(THREE, TWO), Shape5(2, 5, 9, 19, 41)),
    "7^3, strided": (conv(SEVEN, TWO), Shape5(1, 5, 12, 19, 30)),
    "any extents": (conv(Vec3(2, 1, 4), Vec3(1, 2, 1)), Shape5(1, 5, 7, 11, 13)),
    "3^3, transposed": (transposed(THREE), Shape5(2, 5, 5, 7, 21)),
    "5^3, transposed": (transposed(FIVE, repeats=2), Shape5(1, 5, 6, 8, 11)),
    "7^3, transposed along some axes": (transposed(SEVEN, Vec3(1, 2, 2)), Shape5(1, 5, 9, 8, 9)),
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_reference(name: str, device: Device) -> None:
    layer, shape = LAYERS[name]
    (primitive,) = depthwise.primitives(device)
    assert primitive.out_shape(layer, shape) is not None
    check(random_case(layer, shape), device=device, modules=(depthwise,))


@pytest.mark.parametrize(
    "layer", [conv(FIVE, maps=1), Conv("layer", 4, 4, THREE, "relu", groups=2)], ids=str
)
def test_other_groups_are_declined(layer: Conv) -> None:
    (primitive,) = depthwise.primitives(H200)
    assert primitive.out_shape(layer, Shape5.of(1, layer.in_features, Vec3.of(20))) is None


@given(extents(1, 9), extents(1, 3), extents(1, 200))
def test_blocks_cover_the_output(kernel: Vec3, stride: Vec3, size: Vec3) -> None:
    taps, out = Taps.of(conv(kernel, stride)), Shape5.of(1, 5, size)
    found = division(taps, out, 132, COMMON_BLOCK_SHARED // 2)
    if found is None:
        return
    tile = found.tile
    covered = Vec3(found.each, tile.lanes_y * taps.rows, 4 * tile.lanes_x) * found.tiles
    assert out.size.within(covered)
    assert (found.tiles - 1).within((out.size - 1) // (covered // found.tiles))


@pytest.mark.slow_cases
@needs_compiler
@chips
@pytest.mark.parametrize("layer", [conv(THREE), conv(SEVEN), conv(FIVE, TWO), transposed(FIVE)])
def test_sums_stay_in_registers(layer: Conv | ConvTranspose, chip: Chip) -> None:
    found = division(Taps.of(layer), Shape5.of(1, 5, Vec3.of(96)), 132, COMMON_BLOCK_SHARED // 2)
    assert found is not None
    source = depthwise.source("gelu")
    usage = resource_usage(source, chip.architecture, found.tile.options)["depthwise"]
    assert usage.spills == 0
    assert usage.registers * found.tile.threads * found.tile.taps.blocks <= REGISTERS
