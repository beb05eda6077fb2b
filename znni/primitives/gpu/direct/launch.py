"""Launching a direct convolution: its source, its weights, and what runs it."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.network.layers import Activation
from znni.network.weights import ConvWeights, Float32
from znni.plans.primitive import Run
from znni.primitives.gpu.common.activation import activate_over_maps, activation_source
from znni.primitives.gpu.common.kernels import (
    common_code,
    strides_in_elements,
)
from znni.primitives.gpu.direct.geometry import Tile
from znni.primitives.gpu.direct.work import DirectWork


def source(activation: Activation) -> str:
    """Return the CUDA source of ``convolve``, which is compiled with a tile's ``options``."""
    return (
        activation_source(activation)
        + common_code("store_if.cuh", "shared_copies.cuh")
        + source_beside(__file__, "convolution.cu")
    )


def launcher(work: DirectWork, weights: ConvWeights) -> Run:
    """Compile the kernel, and order the weights as it reads them."""
    conv, tile, shape, out = work.conv, work.tile, work.shape, work.out
    kernel = kernel_with_shared(
        source(conv.activation), "convolve", tile.shared_bytes, tile.options
    )
    ordered = cupy().asarray(weights_by_group(weights.weight, tile))
    bias = cupy().asarray(bias_by_group(weights.bias, tile))
    groups, together = tile.groups(conv.out_features), tile.groups_together(conv.out_features)
    parts, tiles = -(-groups // together), tile.tiles(out.size)
    # If blocks copy their input anew for each part, blocks with the same input follow each other,
    # and find it in the cache. Otherwise blocks that write to the same maps follow each other, and
    # write to the same pages.
    part_stride, tile_stride = (tiles.volume * out.n, 1) if tile.one_input_stage else (1, parts)
    blocks = parts * tiles.volume * out.n
    layout = (groups, together, part_stride, tile_stride, *tiles)

    def run(x: Any) -> Any:
        y = new_device_output(out)
        arguments = (
            x,
            *strides_in_elements(x),
            *map(np.int32, shape[1:]),
            y,
            *strides_in_elements(y),
            *map(np.int32, out[1:]),
            ordered,
            bias,
            *map(np.int32, layout),
        )
        kernel((blocks,), (tile.threads,), arguments, shared_mem=tile.shared_bytes)
        activate_over_maps(y, conv.activation)
        return y

    return run


def weights_by_group(weight: Float32, tile: Tile) -> Float32:
    """Return weights (group, input map, z, x, y, map of the group), zero beyond the last map."""
    maps, groups = tile.maps, tile.groups(len(weight))
    whole = np.zeros((groups * maps, *weight.shape[1:]), np.float32)
    whole[: len(weight)] = weight
    by_group = whole.reshape(groups, maps, *weight.shape[1:]).transpose(0, 2, 3, 5, 4, 1)
    padded = np.zeros((*by_group.shape[:-1], tile.maps_pitch), np.float32)
    padded[..., :maps] = by_group
    return padded


def bias_by_group(bias: Float32, tile: Tile) -> Float32:
    """Return the biases of whole groups of maps."""
    whole = np.zeros(tile.groups(len(bias)) * tile.maps, np.float32)
    whole[: len(bias)] = bias
    return whole
