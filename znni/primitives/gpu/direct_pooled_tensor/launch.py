"""Launching a pooled convolution on tensor cores: source, layouts, and what runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.network.layers import Activation
from znni.network.weights import ConvWeights, Float32
from znni.plans.primitive import Run
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.hardware import LANES
from znni.primitives.gpu.common.kernels import definitions, strides_in_elements
from znni.primitives.gpu.direct_pooled_tensor.geometry import LANE_TAPS, MAPS, TAPS, Tile
from znni.primitives.gpu.direct_pooled_tensor.work import PooledWork


def launcher(work: PooledWork, weights: ConvWeights) -> Run:
    """Compile the kernel, and lay out the weights."""
    tile, tiles = work.tile, work.out.size.ceil_div(work.tile.out)
    kernel = kernel_with_shared(
        source(tile, work.conv.activation), "convolve_and_pool", tile.shared_bytes
    )
    bias = np.zeros(work.groups * MAPS, np.float32)
    bias[: work.conv.out_features] = weights.bias
    constants = [
        cupy().asarray(array)
        for array in (weights_by_lane(weights.weight, tile), taps_by_lane(tile), bias)
    ]

    def run(x: Any) -> Any:
        y = new_device_output(work.out)
        arguments = (
            x,
            *strides_in_elements(x),
            *map(np.int32, work.shape.size),
            y,
            *strides_in_elements(y),
            *map(np.int32, work.out[1:]),
            *constants,
            *map(np.int32, tiles),
        )
        blocks = work.out.n * tiles.volume
        kernel((blocks,), (tile.threads,), arguments, shared_mem=tile.shared_bytes)
        return y

    return run


def source(tile: Tile, activation: Activation) -> str:
    """Return the CUDA source of ``convolve_and_pool``."""
    parts = (
        definitions(tile.macros),
        activation_source(activation),
        source_beside(__file__, "convolution.cu"),
    )
    return "\n".join(parts)


def weights_by_lane(weight: Float32, tile: Tile) -> Float32:
    """Return weights in the order of lanes: (16 maps, 8 taps, part, lane, 4), padded with zeros.

    A lane has two of 16 maps, 8 apart, and for each of them two of 8 taps, 4 apart.

    Args:
        weight: (f', f, z, y, x).
        tile: says the number format and the order of taps.
    """
    maps = len(weight)
    groups = -(-maps // MAPS)
    whole = np.zeros((groups * MAPS, tile.steps * TAPS), np.float32)
    whole[:maps, : weight[0].size] = weight.reshape(maps, -1)
    rows = LANES // LANE_TAPS
    split = tile.numbers.split(whole).reshape(
        tile.numbers.parts, groups, MAPS // rows, rows, tile.steps, TAPS // LANE_TAPS, LANE_TAPS
    )
    by_lane = split.transpose(1, 4, 0, 3, 6, 5, 2)
    return np.ascontiguousarray(by_lane).reshape(groups, tile.steps, tile.numbers.parts, LANES, 4)


def taps_by_lane(tile: Tile) -> NDArray[np.int32]:
    """Return the places in the image that lanes read for taps: (8 taps, lane of 4, 2)."""
    offsets = np.array(tile.tap_offsets(tile.pitch), np.int32)
    split = offsets.reshape(tile.steps, TAPS // LANE_TAPS, LANE_TAPS)
    return np.ascontiguousarray(split.transpose(0, 2, 1))
