"""The direct convolution's division of work, its memory and its machine code."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from gpu_layers import DEVICE, most_spills, needs_compiler
from kernel_resources import resource_usage
from layers import random_weights

from znni.core.shapes import Shape5, Vec3, max_pooling, valid_convolution
from znni.network.layers import Conv, Pool, PooledConv
from znni.plans.primitive import Primitive
from znni.primitives.gpu.common.hardware import COMMON_BLOCK_SHARED, LANES
from znni.primitives.gpu.direct.geometry import MOST_SUMS, WARPS, Tile, tile_for
from znni.primitives.gpu.direct.launch import bias_by_group, source, weights_by_group
from znni.primitives.gpu.direct.primitive import GpuDirect
from znni.primitives.gpu.direct_pooled.primitive import GpuDirectPooled

ONE = Vec3(1, 1, 1)
TWO = Vec3(2, 2, 2)

# What the paper's networks have: first layers, plain and pooled, and last ones.
HOT = [
    *((Conv(f"first {k}", 1, 80, Vec3.of(k), "relu"), ONE) for k in (2, 3, 4, 5, 6, 8)),
    *((Conv(f"pooled {k}", 1, 80, Vec3.of(k), "relu"), TWO) for k in (2, 3, 4, 6, 8)),
    *((Conv(f"last {k}", 80, 3, Vec3.of(k), "relu"), ONE) for k in (3, 5, 7, 9)),
]
ODD = [
    (Conv("odd", 3, 7, Vec3(3, 4, 25), "elu"), Vec3(1, 3, 2)),
    (Conv("one tap", 4, 21, ONE, "tanh"), Vec3(3, 3, 3)),
    (Conv("wide", 1, 1, Vec3(2, 17, 40), "sigmoid"), ONE),
    (Conv("hidden", 80, 80, Vec3(3, 3, 3), "leaky_relu"), ONE),
]
layers = pytest.mark.parametrize(
    ("conv", "window"), HOT + ODD, ids=lambda value: getattr(value, "name", str(value))
)
SIZES = [Vec3(41, 57, 230), Vec3(41, 60, 60), Vec3(42, 71, 45)]


def tile_of(conv: Conv, window: Vec3, size: Vec3) -> tuple[Tile, Shape5]:
    between = valid_convolution(size, conv.kernel)
    assert between is not None
    pooled = max_pooling(between, window)
    assert pooled is not None
    out = Shape5.of(2, conv.out_features, pooled)
    tile = tile_for(conv, window, out)
    assert tile is not None
    return tile, out


@layers
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tiles_fit_a_multiprocessor_and_cover_the_output(
    conv: Conv, window: Vec3, size: Vec3
) -> None:
    tile, out = tile_of(conv, window, size)
    assert tile.shared_bytes <= COMMON_BLOCK_SHARED
    assert tile.rows * tile.maps * window.volume <= MOST_SUMS
    assert conv.kernel.z % tile.taps_z == 0
    assert conv.kernel.y % tile.taps_y == 0
    assert tile.groups(conv.out_features) * tile.maps >= conv.out_features
    assert out.size.within(tile.tiles(out.size) * tile.out)
    assert tile.out.volume == tile.threads * tile.rows
    assert tile.warps.volume == WARPS
    # the whole input of a block, or of a stage of it, is what its outputs see
    whole = (tile.out * window) + conv.kernel - 1
    assert tile.seen == whole._replace(z=whole.z - conv.kernel.z + tile.taps_z)
    assert tile.one_input_stage == (tile.taps_z == conv.kernel.z and conv.in_features == 1)


@layers
@pytest.mark.parametrize("lanes_x", [16, 32])
def test_lanes_read_different_banks_where_an_odd_pitch_is_enough(
    conv: Conv, window: Vec3, lanes_x: int
) -> None:
    tile = replace(tile_of(conv, window, SIZES[0])[0], lanes_x=lanes_x)
    if lanes_x < LANES and tile.rows * window.y % LANES == 0:
        return  # rows of the two halves of a warp lie in the same banks, whatever the pitch
    lanes_y = LANES // tile.lanes_x
    step = tile.rows * window.y * tile.pitch
    banks = {(y * step + x) % LANES for y in range(lanes_y) for x in range(tile.lanes_x)}
    assert len(banks) == LANES
    assert tile.pitch >= tile.seen.x


@layers
def test_weights_are_ordered_by_group_and_tap(conv: Conv, window: Vec3) -> None:
    tile, _ = tile_of(conv, window, SIZES[0])
    given = random_weights(conv)
    ordered, bias = weights_by_group(given.weight, tile), bias_by_group(given.bias, tile)
    groups, k = tile.groups(conv.out_features), conv.kernel
    assert ordered.shape == (groups, conv.in_features, k.z, k.x, k.y, tile.maps_pitch)
    at = (conv.out_features - 1, conv.in_features - 1, k.z - 1, 0, k.x - 1)
    last = divmod(conv.out_features - 1, tile.maps)
    found = ordered[last[0], conv.in_features - 1, k.z - 1, k.x - 1, 0, last[1]]
    assert found == given.weight[at]
    assert np.isclose(ordered.sum(dtype=float), given.weight.sum(dtype=float))
    np.testing.assert_array_equal(bias[: conv.out_features], given.bias)
    assert not bias[conv.out_features :].any()
    layer = conv if window == ONE else PooledConv(conv, Pool("pool", window))
    primitive: Primitive = GpuDirect(DEVICE) if window == ONE else GpuDirectPooled(DEVICE)
    shape = Shape5.of(2, conv.in_features, SIZES[0])
    assert primitive.cost(layer, shape).memory.resident == ordered.nbytes + bias.nbytes


@layers
def test_memory_is_input_output_and_weights(conv: Conv, window: Vec3) -> None:
    layer = conv if window == ONE else PooledConv(conv, Pool("pool", window))
    primitive: Primitive = GpuDirect(DEVICE) if window == ONE else GpuDirectPooled(DEVICE)
    shape = Shape5.of(2, conv.in_features, SIZES[1])
    out = primitive.out_shape(layer, shape)
    assert out is not None
    cost = primitive.cost(layer, shape)
    assert cost.memory.workspace == 0
    assert cost.memory.working == 4 * (prod(shape) + prod(out))
    products = out.n * out.size.volume * window.volume * conv.in_features * conv.kernel.volume
    assert cost.flops >= 2 * products * conv.out_features


@pytest.mark.slow_cases
@needs_compiler
@pytest.mark.parametrize(("conv", "window"), HOT[::3], ids=lambda v: getattr(v, "name", str(v)))
def test_hot_kernels_keep_their_sums_in_registers(conv: Conv, window: Vec3) -> None:
    tile, _ = tile_of(conv, window, SIZES[0])
    usage = resource_usage(source(conv.activation), options=tile.options)["convolve"]
    assert usage.spills <= most_spills(0, 32)
    assert usage.registers <= 128  # sixteen warps share 65536


@needs_compiler
@pytest.mark.parametrize(("conv", "window"), ODD, ids=lambda v: getattr(v, "name", str(v)))
def test_any_kernel_compiles(conv: Conv, window: Vec3) -> None:
    tile, _ = tile_of(conv, window, SIZES[2])
    assert "convolve" in resource_usage(source(conv.activation), options=tile.options)


def test_what_registers_or_shared_memory_cannot_hold_is_declined() -> None:
    huge = Conv("huge", 1, 1, Vec3(200, 200, 200), "relu")
    assert GpuDirect(DEVICE).out_shape(huge, Shape5(1, 1, 201, 201, 201)) is None
    window = PooledConv(Conv("conv", 1, 1, TWO, "relu"), Pool("pool", Vec3(5, 5, 5)))
    assert GpuDirectPooled(DEVICE).out_shape(window, Shape5(1, 1, 20, 20, 20)) is None
    softmax = PooledConv(Conv("conv", 1, 1, TWO, "softmax"), Pool("pool", TWO))
    assert GpuDirectPooled(DEVICE).out_shape(softmax, Shape5(1, 1, 20, 20, 20)) is None
    with pytest.raises(ValueError, match="gpu_direct does not apply"):
        GpuDirect(DEVICE).cost(huge, Shape5(1, 1, 201, 201, 201))
