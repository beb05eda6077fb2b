"""Norms of packed values of which a layer before or after does a part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import EMULATED
from layers import random_case, random_weights
from packed_layers import expected, in_both_formats, primitive_for
from packed_values import empty, packed, unpacked

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.machine import Device
from znni.machine.packed_arrays import packed_bytes
from znni.network.layers import (
    Conv,
    Normalize,
    PackedLayer,
)
from znni.network.weights import ConvWeights
from znni.primitives.gpu.common.number_formats import TensorFormat
from znni.primitives.gpu.packed import primitive as packed_layers

ONE, TWO, THREE = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)

NORMED = {
    "a place for each block": (
        Conv("conv", 24, 40, THREE, "identity"),
        Shape5(1, 24, 7, 20, 21),
        8,
    ),
    "more places": (Conv("conv", 8, 16, Vec3(1, 2, 1), "relu"), Shape5(1, 8, 9, 19, 41), 16),
    "several passes": (Conv("conv", 8, 168, ONE, "identity"), Shape5(1, 8, 5, 9, 11), 168),
    "float32 input": (Conv("conv", 3, 8, THREE, "identity"), Shape5(1, 3, 7, 20, 21), 1),
    "strided": (Conv("conv", 16, 24, THREE, "relu", stride=TWO), Shape5(1, 16, 9, 37, 40), 8),
    "first": (Conv("conv", 1, 32, THREE, "identity"), Shape5(1, 1, 11, 23, 45), 32),
    "first in several passes": (Conv("conv", 2, 40, TWO, "elu"), Shape5(1, 2, 6, 11, 19), 40),
    "first of parts": (Conv("conv", 1, 12, THREE, "elu"), Shape5(1, 1, 5, 9, 21), 12),
    "parts of groups": (Conv("conv", 12, 20, TWO, "identity"), Shape5(1, 12, 6, 11, 19), 2),
    "small first": (Conv("conv", 4, 8, ONE, "relu"), Shape5(1, 4, 3, 10, 33), 4),
    "batch": (Conv("conv", 8, 16, THREE, "identity"), Shape5(3, 8, 5, 11, 21), 8),
    "batch of many places": (
        Conv("conv", 8, 16, Vec3(1, 2, 1), "relu"),
        Shape5(2, 8, 9, 19, 41),
        16,
    ),
    "batch of first": (Conv("conv", 1, 32, THREE, "identity"), Shape5(3, 1, 6, 21, 35), 32),
    "batch of small first": (Conv("conv", 2, 40, TWO, "elu"), Shape5(5, 2, 3, 5, 9), 20),
}


@pytest.mark.slow_cases
@in_both_formats
@pytest.mark.parametrize("mean", [0.0, 30.0])
@pytest.mark.parametrize("name", NORMED)
def test_a_convolution_adds_up_maps_for_the_norm_after_it(
    device: Device, numbers: TensorFormat, name: str, mean: float
) -> None:
    layer, shape, groups = NORMED[name]
    case = random_case(layer, shape)
    weights = ConvWeights(case.weights.weight, case.weights.bias + np.float32(mean))
    reads = shape.f > 4
    between = expected(layer, weights, (case.x,)).astype(np.float32)
    out = Shape5(*between.shape)
    norm = Normalize("norm", out.f, groups, 1e-5, "leaky_relu")
    trained = random_weights(norm)
    right = expected(norm, trained, (between,))
    first, last = (
        PackedLayer(layer, reads, True, sums=True, parts=numbers.parts),
        PackedLayer(norm, True, True, True, parts=numbers.parts),
    )
    is_first = "first" in name
    run = primitive_for(device, first, shape, is_first).build(first, shape, weights)
    scaled_by = primitive_for(device, last, out).build(last, out, trained)
    x = packed(case.x, 2.0**-3, numbers.parts) if reads else cupy().asarray(case.x)
    y = empty(out, numbers.parts, gaps=True)
    with output_into(y):
        made = run(x)
    sums = made.sums.get()
    count = out.size.volume
    means, squares = np.moveaxis(sums.sum(axis=1)[:, : out.f], 2, 0) / count
    values = between.astype(np.float64).reshape(out.n, out.f, count)
    spread = values.std(axis=2)
    assert np.abs(means - values.mean(axis=2)).max() <= numbers.accuracy * spread.max()
    variances, rounded = squares - means**2, 2.0**-24 * (values**2).mean()  # sums in float32
    np.testing.assert_allclose(variances, spread**2, rtol=4 * numbers.accuracy, atol=rounded)
    found = unpacked(scaled_by(made))
    # That of the value between.
    rounding = 2.0 ** (-11 * numbers.parts) * np.abs(values).max() / spread.min()
    atol = (numbers.accuracy + rounding * np.abs(trained.weight).max()) * np.abs(right).max()
    np.testing.assert_allclose(found, right, rtol=0, atol=atol)
    with output_into(y):
        np.testing.assert_array_equal(run(x).sums.get(), sums)


def test_a_norm_with_sums_reads_its_input_once() -> None:
    shape = Shape5(1, 32, 20, 40, 40)
    norm = PackedLayer(Normalize("norm", 32, 32), True, True)
    with_sums = replace(norm, sums=True)
    primitive = primitive_for(EMULATED, with_sums, shape)
    one, two = (primitive.cost(it, shape) for it in (with_sums, norm))
    assert two.bytes_moved == one.bytes_moved + packed_bytes(shape, 1)
    assert one.memory.workspace == 0
    conv = PackedLayer(Conv("conv", 32, 32, THREE, "identity"), True, True)
    dense = primitive_for(EMULATED, conv, shape)
    one, two = (dense.cost(replace(conv, sums=it), shape) for it in (True, False))
    kept = one.memory.resident - two.memory.resident
    assert kept > 0
    assert one.bytes_moved == two.bytes_moved + 2 * kept
    assert one.flops / one.efficiency >= two.flops / two.efficiency


LEFT = {
    "summed before": (Normalize("norm", 32, 32, 1e-5, "leaky_relu"), Shape5(1, 32, 3, 5, 75), True),
    "batch": (Normalize("norm", 24, 3, 1e-2, "elu"), Shape5(2, 24, 3, 4, 16), False),
    "batch summed before": (Normalize("norm", 32, 8, 1e-5, "relu"), Shape5(3, 32, 2, 5, 9), True),
    "many maps": (Normalize("norm", 56, 56, 1e-5, "prelu"), Shape5(1, 56, 2, 3, 29), False),
    "parts of groups": (Normalize("norm", 12, 3, 1e-5, "elu"), Shape5(2, 12, 2, 3, 29), False),
    "steep": (Normalize("norm", 8, 8, 1e-5, "leaky_relu", 1.7), Shape5(1, 8, 2, 3, 9), False),
}


@pytest.mark.slow_cases
@in_both_formats
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", LEFT)
def test_a_norm_may_be_left_to_the_layer_after_it(
    device: Device, numbers: TensorFormat, name: str, in_place: bool
) -> None:
    norm, shape, sums = LEFT[name]
    head = Conv("head", shape.f, 3, ONE, "sigmoid")
    case, trained = random_case(norm, shape), random_weights(head)
    x = case.x * np.float32(3) + np.float32(1)
    between = expected(norm, case.weights, (x,)).astype(np.float32)
    right = expected(head, trained, (between,))
    first = PackedLayer(norm, True, True, sums, numbers.parts, leaves=True)
    last = PackedLayer(head, True, False, parts=numbers.parts, norm=norm)
    leave = primitive_for(device, first, shape).build(first, shape, case.weights)
    run = primitive_for(device, last, shape).build(last, shape, trained)
    given = packed(x, 2.0**5, numbers.parts, gaps=True)
    before = given.voxels.get()
    if sums:
        exact = x.astype(np.float64)
        both = (exact**power for power in (1, 2))
        of_maps = np.stack([it.sum(axis=(2, 3, 4)) for it in both], axis=-1)
        parts = np.stack([of_maps / 4, of_maps * 0.75], axis=1)
        given = given._replace(sums=cupy().asarray(parts))
    y = given._replace(records=cupy().zeros(given.records.shape, np.uint32), sums=None)
    if not in_place:
        y = empty(shape, numbers.parts, gaps=True)
    with output_into(y):
        made = leave(given)
    assert made.norm is not None
    np.testing.assert_array_equal(made.voxels.get(), before)
    found = run(made).get()
    np.testing.assert_allclose(
        found, right, rtol=0, atol=2 * numbers.accuracy * np.abs(right).max()
    )


def test_a_norm_that_is_left_moves_no_voxel() -> None:
    shape = Shape5(1, 32, 20, 40, 40)
    norm = Normalize("norm", 32, 32)
    left, whole = (PackedLayer(norm, True, True, leaves=it) for it in (True, False))
    primitive = primitive_for(EMULATED, left, shape)
    one, two = (primitive.cost(it, shape) for it in (left, whole))
    assert one.memory == two.memory
    assert 0 < one.bytes_moved < packed_bytes(shape, 1) + 4 * 5 * 32 + 1
    assert 0 < one.flops < two.flops
    head = PackedLayer(Conv("head", 32, 3, ONE, "identity"), True, False)
    last = primitive_for(EMULATED, replace(head, norm=norm), shape)
    one, two = (last.cost(it, shape) for it in (replace(head, norm=norm), head))
    assert one.bytes_moved == two.bytes_moved
    assert one.flops / one.efficiency > two.flops / two.efficiency


def test_a_norm_without_eps_is_declined_where_numbers_belong_to_no_map(device: Device) -> None:
    """They do not vary, so their norm would be NaN, and so would be all sums of the next layer."""
    for maps, does in ((16, True), (12, False)):
        shape = Shape5(1, maps, 3, 4, 5)
        norm = Normalize("norm", maps, maps, 0.0)
        for layer in (
            PackedLayer(norm, True, True),
            PackedLayer(norm, True, True, True),
            PackedLayer(norm, True, True, leaves=True),
        ):
            found = [it for it in packed_layers.primitives(device) if it.out_shape(layer, shape)]
            assert bool(found) == does
        if does:
            case = random_case(norm, shape)
            operation = PackedLayer(norm, True, True)
            run = primitive_for(device, operation, shape).build(operation, shape, case.weights)
            right = expected(norm, case.weights, (case.x,))
            np.testing.assert_allclose(unpacked(run(packed(case.x))), right, rtol=0, atol=1e-2)
