"""Two convolutions of one tap of packed values give the reference in one pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_layers import H200, needs_compiler
from kernel_resources import resource_usage
from layers import random_weights
from packed_layers import expected, in_both_formats
from packed_values import empty, packed, unpacked

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.machine import Device
from znni.machine.packed_arrays import LeftNorm
from znni.network.layers import Add, Conv, ConvPair, Normalize, PackedLayer, SummedConvPair
from znni.primitives.gpu.common.hardware import HOPPER, REGISTERS
from znni.primitives.gpu.common.number_formats import FLOAT16_PAIR, TensorFormat
from znni.primitives.gpu.packed.pair import GpuPackedPair, source

# The maps of the input, between, and of the output; and the shape of the input.
MAPS = {
    "narrow": ((16, 40, 24), Shape5(2, 16, 3, 4, 9)),
    "a block": ((32, 64, 32), Shape5(1, 32, 5, 9, 11)),
    "few maps": ((32, 96, 5), Shape5(1, 32, 3, 7, 9)),
}


def operation(
    maps: tuple[int, int, int], *, norms: bool, adds: bool, parts: int = 1
) -> PackedLayer:
    """Return a pair, after a norm and before a sum if that is wanted."""
    taken, between, given = maps
    first = Conv("first", taken, between, Vec3(1, 1, 1), "gelu")
    later = Conv("later", between, given, Vec3(1, 1, 1), "identity")
    layer = SummedConvPair(first, later, Add("sum")) if adds else ConvPair(first, later)
    norm = Normalize("norm", taken, taken) if norms else None
    return PackedLayer(layer, True, True, parts=parts, norm=norm)


@pytest.mark.slow_cases
@in_both_formats
@pytest.mark.parametrize(("norms", "adds"), [(False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_a_pair_is_the_reference(
    device: Device, numbers: TensorFormat, name: str, norms: bool, adds: bool
) -> None:
    (maps, shape), parts, draw = MAPS[name], numbers.parts, np.random.default_rng(0)
    layer = operation(maps, norms=norms, adds=adds, parts=parts)
    first, later = layer.layer.layers[:2]  # type: ignore[union-attr]
    weights, more = random_weights(first), random_weights(later)
    x = draw.standard_normal(shape, np.float32)
    scaling = draw.uniform(0.5, 2, (shape.n, 2, maps[0])).astype(np.float32)
    given, taken = packed(x, 2.0**-3, parts, gaps=True), x
    if norms:
        factor, shift = (each[..., None, None, None] for each in scaling.swapaxes(0, 1))
        norm = LeftNorm(cupy().asarray(scaling), cupy().asarray(scaling[0, 0]), np.float32(16))
        given, taken = given._replace(norm=norm), x * factor + shift
    between = expected(first, weights, (taken,)).astype(np.float32)
    right = expected(later, more, (between,))
    run = GpuPackedPair(device, numbers).build(layer, shape, replace(weights, after=more))
    y = empty(Shape5(*right.shape), parts, gaps=True)
    others: tuple[Any, ...] = ()
    if adds:
        other = draw.standard_normal(right.shape, np.float32)
        y, right = packed(other, 2.0**-2, parts, gaps=True), right + other
        others = (y._replace(records=cupy().asarray(y.records.get())),)
        y.records.fill(0)
    with output_into(y):
        run(given, *others)
    np.testing.assert_allclose(
        unpacked(y), right, rtol=0, atol=numbers.accuracy * np.abs(right).max()
    )


def test_maps_whose_weights_do_not_fit_are_declined() -> None:
    wide = operation((256, 1024, 256), norms=True, adds=True)
    assert GpuPackedPair(H200).out_shape(wide, Shape5(1, 256, 8, 8, 8)) is None


@pytest.mark.slow_cases
@needs_compiler
@in_both_formats
@pytest.mark.parametrize("maps", [(32, 64, 32), (64, 128, 64), (128, 256, 128)], ids=str)
def test_sums_stay_in_registers(maps: tuple[int, int, int], numbers: TensorFormat) -> None:
    layer = operation(maps, norms=True, adds=True, parts=numbers.parts)
    work = GpuPackedPair(H200, numbers).work(layer, Shape5.of(1, maps[0], Vec3.of(64)))
    if work is None:
        assert (maps, numbers) == ((128, 256, 128), FLOAT16_PAIR)
        return
    layout, usage = work.layout, resource_usage(source(work), HOPPER.architecture)["pair"]
    assert usage.spills == 0
    assert usage.registers * 32 * layout.warps * layout.blocks <= REGISTERS
    assert layout.blocks * layout.shared_bytes <= HOPPER.shared_bytes
