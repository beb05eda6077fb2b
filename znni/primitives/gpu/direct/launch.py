"""A direct convolution of tiles, made ready for one shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.network import Activation, Conv
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run
from znni.primitives.gpu.common.activation import (
    activate_over_maps,
    activation_source,
    with_softmax,
)
from znni.primitives.gpu.common.capability import AMPERE, capability_of
from znni.primitives.gpu.common.strides import strides_in_elements
from znni.primitives.gpu.direct.geometry import Tile

# Multiply-adds that a multiprocessor's schedulers issue at once, as operations; and the share of
# their turns that they issue or wait as counted, measured on an H200.
FLOPS_TOGETHER = 256
ISSUED = 0.83


def runs_on(device: Device) -> bool:
    """Whether a GPU copies to shared memory on its own, as the kernel asks it to."""
    return capability_of(device) >= AMPERE


def source(activation: Activation) -> str:
    """CUDA of the kernel ``convolve``, which is compiled with a tile's ``options``."""
    return activation_source(activation) + source_beside(__file__, "convolution.cu")


def cost_of(conv: Conv, tile: Tile, shape: Shape5, out: Shape5) -> Cost:
    """A multiply-add for each tap of each voxel, at the rate of the instructions around them.

    Input and output are moved once.
    """
    maps = tile.groups(conv.out_features) * tile.maps
    voxels = out.n * out.size.volume * tile.window.volume
    flops = 2.0 * voxels * maps * conv.in_features * conv.kernel.volume
    cost = Cost(
        flops=flops,
        bytes_moved=shape.nbytes + out.nbytes,
        memory=Memory.beside(shape.nbytes + out.nbytes, 0, _resident(conv, tile)),
        efficiency=ISSUED * flops / (FLOPS_TOGETHER * tile.instructions(conv, out)),
    )
    return with_softmax(cost, conv.activation, out)


def build(conv: Conv, tile: Tile, shape: Shape5, out: Shape5, weights: ConvWeights) -> Run:
    """Compile the kernel, and order the weights as it reads them."""
    kernel = kernel_with_shared(
        source(conv.activation), "convolve", tile.shared_bytes, tile.options
    )
    ordered = cupy().asarray(weights_by_group(weights.weight, tile))
    bias = cupy().asarray(bias_by_group(weights.bias, tile))
    groups, together = tile.groups(conv.out_features), tile.groups_together(conv.out_features)
    parts, tiles = -(-groups // together), tile.tiles(out.size)
    # Where blocks bring their input anew for each part, those that share it are neighbours, and it
    # is in cache; otherwise those are that write to the same maps, and to the same pages.
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
    """Weights as (group, input map, z, x, y, map of the group), zero where there is no map."""
    maps, groups = tile.maps, tile.groups(len(weight))
    whole = np.zeros((groups * maps, *weight.shape[1:]), np.float32)
    whole[: len(weight)] = weight
    by_group = whole.reshape(groups, maps, *weight.shape[1:]).transpose(0, 2, 3, 5, 4, 1)
    padded = np.zeros((*by_group.shape[:-1], tile.maps_pitch), np.float32)
    padded[..., :maps] = by_group
    return padded


def bias_by_group(bias: Float32, tile: Tile) -> Float32:
    """Biases of whole groups of maps."""
    whole = np.zeros(tile.groups(len(bias)) * tile.maps, np.float32)
    whole[: len(bias)] = bias
    return whole


def _resident(conv: Conv, tile: Tile) -> int:
    groups = tile.groups(conv.out_features)
    of_group = conv.in_features * conv.kernel.volume * tile.maps_pitch + tile.maps
    return 4 * groups * of_group
