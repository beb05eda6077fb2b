"""Last layers of packed values: their layout, their division of work, and their results."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from emulated_gpu import EMULATED, ORDERS, Memory, emulated_gpu, needs_emulation
from gpu_layers import H200, chips, needs_compiler
from kernel_resources import resource_usage
from layers import random_case, random_weights
from packed_layers import in_both_formats
from packed_values import packed

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.device_arena import ALIGNMENT, DeviceArena
from znni.machine.machine import Device
from znni.machine.packed_arrays import packed_array
from znni.network.layers import Conv, Normalize, PackedLayer
from znni.network.weights import Weights
from znni.plans.nominal_time import nominal_time
from znni.primitives import tiled_reference
from znni.primitives.gpu.common.hardware import REGISTERS, Chip
from znni.primitives.gpu.common.number_formats import TensorFormat
from znni.primitives.gpu.packed.convolution import GpuPackedConvolution
from znni.primitives.gpu.packed.last_layer import (
    THREADS,
    GpuPackedLastLayer,
    LastLayerWork,
    source,
    weights_by_lane,
)

ONE = Vec3(1, 1, 1)
orders = cycle(ORDERS)

CASES = {
    "two chunks": (Conv("layer", 32, 3, ONE, "identity"), Shape5(1, 32, 3, 5, 75)),
    "half a chunk": (Conv("layer", 24, 1, ONE, "sigmoid"), Shape5(2, 24, 3, 4, 16)),
    "many chunks": (Conv("layer", 56, 8, ONE, "elu"), Shape5(1, 56, 2, 3, 29)),
    "part of a group": (Conv("layer", 12, 3, ONE, "identity"), Shape5(1, 12, 2, 3, 29)),
    "softmax": (Conv("layer", 8, 5, ONE, "softmax"), Shape5(2, 8, 2, 3, 9)),
}


def packing(layer: Conv, parts: int = 1) -> PackedLayer:
    return PackedLayer(layer, reads=True, writes=False, parts=parts)


@pytest.mark.slow_cases
@in_both_formats
@pytest.mark.parametrize("name", CASES)
def test_last_layers(device: Device, numbers: TensorFormat, name: str) -> None:
    layer, shape = CASES[name]
    case = random_case(layer, shape)
    right = tiled_reference.local(layer, Weights({"layer": case.weights}, "test"), (case.x,))
    run = GpuPackedLastLayer(device, numbers).build(
        packing(layer, numbers.parts), shape, case.weights
    )
    found = run(packed(case.x, 2.0**5, numbers.parts, gaps=True)).get()
    np.testing.assert_allclose(found, right, rtol=0, atol=numbers.accuracy * np.abs(right).max())


@in_both_formats
def test_an_output_may_have_gaps(device: Device, numbers: TensorFormat) -> None:
    layer, shape = CASES["two chunks"]
    case = random_case(layer, shape)
    right = tiled_reference.local(layer, Weights({"layer": case.weights}, "test"), (case.x,))
    whole = cupy().full((1, 4, 4, 6, 80), 7, np.float32)
    run = GpuPackedLastLayer(device, numbers).build(
        packing(layer, numbers.parts), shape, case.weights
    )
    with output_into(whole[:, :3, 1:, 1:, 2:77]):
        run(packed(case.x, parts=numbers.parts))
    found = whole.get()
    written = found[:, :3, 1:, 1:, 2:77].copy()
    np.testing.assert_allclose(written, right, rtol=0, atol=numbers.accuracy * np.abs(right).max())
    found[:, :3, 1:, 1:, 2:77] = 7
    assert (found == 7).all()


@in_both_formats
@pytest.mark.parametrize("ratio", [2.0**-40, 2.0**9])
def test_chunks_have_scales_of_their_own(
    device: Device, numbers: TensorFormat, ratio: float
) -> None:
    layer, shape = Conv("layer", 40, 2, ONE, "identity"), Shape5(1, 40, 2, 3, 12)
    case = random_case(layer, shape)
    case.x[:, 16:] *= np.float32(ratio)
    right = tiled_reference.local(layer, Weights({"layer": case.weights}, "test"), (case.x,))
    joined = packed_array(shape, numbers.parts)
    for first, count, scale in ((0, 16, 2.0**5), (16, 24, 2.0**5 / ratio)):
        part, made = (
            packed(case.x[:, first : first + count], scale, numbers.parts),
            joined.maps(first, count),
        )
        made.voxels[...], made.records[...] = part.voxels, part.records
    run = GpuPackedLastLayer(device, numbers).build(
        packing(layer, numbers.parts), shape, case.weights
    )
    np.testing.assert_allclose(
        run(joined).get(), right, rtol=0, atol=numbers.accuracy * np.abs(right).max()
    )


@in_both_formats
def test_numbers_that_are_not_finite_stay_so(device: Device, numbers: TensorFormat) -> None:
    layer, shape = Conv("layer", 24, 3, ONE, "identity"), Shape5(1, 24, 2, 3, 20)
    case = random_case(layer, shape)
    case.x[0, 2, 1, 1, 4], case.x[0, 20, 0, 2, 3] = np.inf, np.nan
    right = tiled_reference.local(layer, Weights({"layer": case.weights}, "test"), (case.x,))
    run = GpuPackedLastLayer(device, numbers).build(
        packing(layer, numbers.parts), shape, case.weights
    )
    np.testing.assert_array_equal(
        np.isfinite(run(packed(case.x, parts=numbers.parts)).get()), np.isfinite(right)
    )


@in_both_formats
def test_lanes_have_all_weights(numbers: TensorFormat) -> None:
    weight = np.arange(1, 3 * 40 + 1, dtype=np.float32).reshape(3, 40, 1, 1, 1)
    weight += np.float32(2.0**-13 * (numbers.parts - 1))
    lanes = weights_by_lane(weight, numbers).astype(np.float32).sum(axis=1)
    for chunk, lane, group, of_two in np.ndindex(lanes.shape):
        out, given = lane // 4, 16 * chunk + 8 * group + lane % 4 * 2 + of_two
        right = weight[out, given] if out < 3 and given < 40 else 0
        assert lanes[chunk, lane, group, of_two] == right


@pytest.mark.slow
@needs_compiler
@in_both_formats
@chips
def test_kernels_fit_every_chip(chip: Chip, numbers: TensorFormat) -> None:
    for layer, given in (CASES["two chunks"], CASES["many chunks"]):
        shape = given._replace(x=192)
        out = shape._replace(f=layer.out_features)
        norms = (
            Normalize("norm", shape.f, shape.f, activation=it) for it in ("leaky_relu", "gelu")
        )
        works = (LastLayerWork(shape, out, layer, chip, numbers, it) for it in (None, *norms))
        for work in works:
            (usage,) = resource_usage(source(work), chip.architecture).values()
            assert usage.spills == 0
            assert usage.registers * THREADS * work.blocks <= REGISTERS
            assert usage.shared == 0


@in_both_formats
@needs_emulation
def test_memory_is_declared(numbers: TensorFormat) -> None:
    layer, shape = CASES["two chunks"]
    with emulated_gpu(next(orders)):
        primitive = GpuPackedLastLayer(EMULATED, numbers)
        memory = primitive.cost(packing(layer, numbers.parts), shape).memory
        before = Memory.taken
        run = primitive.build(packing(layer, numbers.parts), shape, random_weights(layer))
        assert Memory.taken - before == memory.resident
        out, arena = (
            primitive.out_shape(packing(layer, numbers.parts), shape),
            DeviceArena(0, 2 * ALIGNMENT),
        )
        assert out is not None
        x, y = packed(random_case(layer, shape).x, parts=numbers.parts), cupy().zeros(out)
        with arena.step((0, arena.capacity)), output_into(y):
            run(x)
        assert memory.workspace == 0
        assert memory.working == numbers.parts * shape.nbytes // 2 + out.nbytes


def test_it_is_the_fastest_and_declines_others() -> None:
    shape, primitive = Shape5(1, 32, 192, 192, 192), GpuPackedLastLayer(H200)
    layer = packing(Conv("layer", 32, 3, ONE, "sigmoid"))
    other = GpuPackedConvolution(H200)
    assert nominal_time(primitive, primitive.cost(layer, shape)) < nominal_time(
        other, other.cost(layer, shape)
    )
    for declined in (
        layer.layer,
        PackedLayer(layer.layer, True, True),
        packing(Conv("layer", 32, 9, ONE, "relu")),
        packing(Conv("layer", 32, 3, Vec3(1, 1, 2), "relu")),
    ):
        assert primitive.out_shape(declined, shape) is None
