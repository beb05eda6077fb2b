"""A convolution pooled as it is computed, on tensor cores: its cost, and made ready to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.network.network import Activation, Conv
from znni.network.weights import ConvWeights, Float32
from znni.plans.primitive import Run
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.rounding import TF32_LACKS, rounded
from znni.primitives.gpu.common.source import definitions
from znni.primitives.gpu.common.strides import strides_in_elements
from znni.primitives.gpu.direct_pooled_tensor.geometry import (
    FLOAT_BYTES,
    LANE_TAPS,
    LANES,
    MAPS,
    TAPS,
    VOXELS,
    Tile,
)

# Of a multiprocessor of an H200: operations at its nominal float32 rate in a cycle; and cycles of a
# product, and to store a sector of memory.
CYCLE_FLOPS = 298
PRODUCT_CYCLES = 2.4
SECTOR_VOXELS = 8
SECTOR_CYCLES = 2.6


@dataclass(frozen=True)
class PooledConvolution:
    """A layer's work.

    Attributes:
        conv: the convolution.
        tile: of a block.
        shape: of the input.
        out: of the pooled output.
    """

    conv: Conv
    tile: Tile
    shape: Shape5
    out: Shape5

    @property
    def groups(self) -> int:
        """Of 16 output maps."""
        return -(-self.conv.out_features // MAPS)

    @property
    def products(self) -> float:
        """Of all positions, taps and terms, in rows of whole products."""
        rows = self.out.n * self.out.z * self.out.y
        of_voxels = self.tile.window.volume * self.tile.steps * self.tile.terms
        return float(rows * -(-self.out.x // VOXELS) * self.groups * of_voxels)

    @property
    def flops(self) -> float:
        """Of all products."""
        return 2.0 * MAPS * TAPS * VOXELS * self.products

    @property
    def bytes_moved(self) -> int:
        """Input and output."""
        return self.shape.nbytes + self.out.nbytes

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that they sustain, on tensor cores."""
        stores = self.out.elements / SECTOR_VOXELS * SECTOR_CYCLES
        return self.flops / (CYCLE_FLOPS * (self.products * PRODUCT_CYCLES + stores))

    @property
    def resident_bytes(self) -> int:
        """Of weights, biases and where taps lie."""
        weights = self.groups * self.tile.steps * self.tile.parts * LANES * LANE_TAPS
        return FLOAT_BYTES * (weights + self.groups * MAPS + self.tile.steps * TAPS)

    def ready(self, weights: ConvWeights) -> Run:
        """Compile or load the kernel, and lay out the weights.

        Args:
            weights: of the layer.
        """
        tile, tiles = self.tile, self.out.size.ceil_div(self.tile.out)
        kernel = kernel_with_shared(
            source(tile, self.conv.activation), "convolve_and_pool", tile.shared_bytes
        )
        bias = np.zeros(self.groups * MAPS, np.float32)
        bias[: self.conv.out_features] = weights.bias
        constants = [
            cupy().asarray(array)
            for array in (weights_by_lane(weights.weight, tile), taps_by_lane(tile), bias)
        ]

        def run(x: Any) -> Any:
            y = new_device_output(self.out)
            arguments = (
                x,
                *strides_in_elements(x),
                *map(np.int32, self.shape.size),
                y,
                *map(np.int32, self.out[1:]),
                *constants,
                *map(np.int32, tiles),
            )
            blocks = self.out.n * tiles.volume
            kernel((blocks,), (tile.threads,), arguments, shared_mem=tile.shared_bytes)
            return y

        return run


def source(tile: Tile, activation: Activation) -> str:
    """CUDA C++ of ``convolve_and_pool``."""
    parts = (
        definitions(tile.macros),
        activation_source(activation),
        source_beside(__file__, "convolution.cu"),
    )
    return "\n".join(parts)


def weights_by_lane(weight: Float32, tile: Tile) -> Float32:
    """Weights as lanes take them: (16 maps, 8 taps, part, lane, 4), zero where there are none.

    Of 16 maps and 8 taps a lane has two maps, 8 apart, for each of two taps, 4 apart.

    Args:
        weight: (f', f, z, y, x).
        tile: whose numbers they are given as.
    """
    maps = len(weight)
    groups = -(-maps // MAPS)
    whole = np.zeros((groups * MAPS, tile.steps * TAPS), np.float32)
    whole[:maps, : weight[0].size] = weight.reshape(maps, -1)
    parts = []
    for _ in range(tile.parts):
        parts.append(rounded(whole, TF32_LACKS))
        whole = whole - parts[-1]
    halves = LANES // LANE_TAPS
    split = np.stack(parts).reshape(
        tile.parts, groups, MAPS // halves, halves, tile.steps, TAPS // LANE_TAPS, LANE_TAPS
    )
    by_lane = split.transpose(1, 4, 0, 3, 6, 5, 2)
    return np.ascontiguousarray(by_lane).reshape(groups, tile.steps, tile.parts, LANES, 4)


def taps_by_lane(tile: Tile) -> NDArray[np.int32]:
    """Where the taps lie that lanes read: (8 taps, lane of 4, 2)."""
    offsets = np.array(tile.tap_offsets(tile.pitch), np.int32)
    split = offsets.reshape(tile.steps, TAPS // LANE_TAPS, LANE_TAPS)
    return np.ascontiguousarray(split.transpose(0, 2, 1))
