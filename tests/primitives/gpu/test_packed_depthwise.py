"""Depthwise convolution of packed values gives the reference, and the sums of its maps."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_layers import H200, chips, needs_compiler
from kernel_resources import resource_usage
from layers import random_case
from packed_layers import expected, in_both_formats
from packed_values import empty, packed, unpacked

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.machine import Device
from znni.network.layers import Conv, ConvTranspose, PackedLayer
from znni.primitives.gpu.common.hardware import COMMON_BLOCK_SHARED, REGISTERS, Chip
from znni.primitives.gpu.common.number_formats import TensorFormat
from znni.primitives.gpu.depthwise.geometry import Taps, division
from znni.primitives.gpu.packed.depthwise import GpuPackedDepthwise, source

ONE, TWO, THREE, FIVE, SEVEN = map(Vec3.of, (1, 2, 3, 5, 7))


def conv(kernel: Vec3, stride: Vec3 = ONE, maps: int = 16) -> Conv:
    """Return a depthwise convolution."""
    return Conv("layer", maps, maps, kernel, "gelu", stride, groups=maps)


def transposed(kernel: Vec3) -> ConvTranspose:
    """Return a transposed depthwise convolution that keeps the middle of its output."""
    cut = (kernel - 1) // 2
    return ConvTranspose("layer", 16, 16, kernel, "elu", TWO, cut, cut, groups=16)


LAYERS: dict[str, tuple[Conv | ConvTranspose, Shape5]] = {
    "3^3": (conv(THREE), Shape5(2, 16, 9, 19, 40)),
    "5^3, parts of groups": (conv(FIVE, maps=12), Shape5(1, 12, 13, 9, 38)),
    "7^3, strided": (conv(SEVEN, TWO), Shape5(1, 16, 12, 19, 30)),
    "any extents": (conv(Vec3(2, 1, 4), Vec3(1, 2, 1)), Shape5(1, 16, 7, 11, 13)),
    "3^3, transposed": (transposed(THREE), Shape5(2, 16, 5, 7, 21)),
    "5^3, transposed": (transposed(FIVE), Shape5(1, 16, 6, 8, 11)),
}


@pytest.mark.slow_cases
@in_both_formats
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_reference(name: str, device: Device, numbers: TensorFormat) -> None:
    layer, shape = LAYERS[name]
    case, parts = random_case(layer, shape), numbers.parts
    right = expected(layer, case.weights, (case.x,))
    operation = PackedLayer(layer, True, True, sums=True, parts=parts)
    run = GpuPackedDepthwise(device, numbers).build(operation, shape, case.weights)
    y = empty(Shape5(*right.shape), parts, gaps=True)
    with output_into(y):
        made = run(packed(case.x, 2.0**-3, parts, gaps=True))
    allowed, largest = numbers.accuracy, np.abs(right).max()
    np.testing.assert_allclose(unpacked(y), right, rtol=0, atol=allowed * largest)
    sums = made.sums.get().sum(axis=1)[:, : layer.out_features]
    count = right[0, 0].size
    np.testing.assert_allclose(
        sums[..., 0], right.sum((2, 3, 4)), rtol=0, atol=allowed * count * largest
    )
    np.testing.assert_allclose(sums[..., 1], (right**2).sum((2, 3, 4)), rtol=2 * allowed)


def test_values_that_are_not_packed_on_both_sides_are_declined() -> None:
    layer, shape = LAYERS["3^3"]
    primitive = GpuPackedDepthwise(H200)
    assert primitive.out_shape(PackedLayer(layer, True, True), shape)
    for reads, writes in ((True, False), (False, True)):
        assert primitive.out_shape(PackedLayer(layer, reads, writes), shape) is None


@pytest.mark.slow_cases
@needs_compiler
@chips
@in_both_formats
@pytest.mark.parametrize("layer", [conv(SEVEN), transposed(THREE)], ids=str)
def test_sums_stay_in_registers(
    layer: Conv | ConvTranspose, chip: Chip, numbers: TensorFormat
) -> None:
    taps, out = Taps.of(layer, numbers.parts), Shape5.of(1, 16, Vec3.of(96))
    found = division(taps, out, 132, COMMON_BLOCK_SHARED // 2)
    assert found is not None
    code = source("gelu", numbers, sums=True)
    usage = resource_usage(code, chip.architecture, found.tile.options)["depthwise"]
    assert usage.spills == 0
    assert usage.registers * found.tile.threads * taps.blocks <= REGISTERS
