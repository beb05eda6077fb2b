"""One layer's direct convolution on tensor cores, ready to run."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.core.shapes import Vec3
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, kernel_with_shared
from znni.machine.device_arena import device_workspace, new_device_output
from znni.network.weights import ConvWeights
from znni.primitives.gpu.common.activation import activate_over_maps
from znni.primitives.gpu.common.strides import strides_in_elements
from znni.primitives.gpu.direct_tensor.geometry import THREADS
from znni.primitives.gpu.direct_tensor.pieces import Pieces
from znni.primitives.gpu.direct_tensor.sources import convolution_source, image_source
from znni.primitives.gpu.direct_tensor.weights import scales_of, weights_by_stage

# Threads of a block that lays out the image, and such blocks of a multiprocessor.
IMAGE_THREADS = 256
IMAGE_BLOCKS = 6

# Blocks along the second axis of a grid, at most.
MOST_GRID_ROWS = 65535


class TensorConvolution:
    """Runs a layer: of one piece after another the image in float16, then its convolution.

    Args:
        pieces: of the layer's work.
        weights: of the layer; they are laid out now and kept.
    """

    def __init__(self, pieces: Pieces, weights: ConvWeights) -> None:
        block = pieces.block
        self._pieces = pieces
        self._lay_out = compiled(image_source(block.numbers)).get_function("lay_out")
        self._kernels = [
            kernel_with_shared(
                convolution_source(strip.block, pieces.conv.activation),
                "convolve",
                strip.block.shared_bytes,
            )
            for strip in pieces.strips
        ]
        scales = scales_of(weights.weight)
        scaled = weights.weight * scales[:, None, None, None, None]
        self._weights = cupy().asarray(weights_by_stage(scaled, block))
        rows = np.zeros((2, block.passes * block.columns), np.float32)
        rows[:, : len(scales)] = 1 / scales, weights.bias
        self._factors_and_bias = cupy().asarray(rows)
        self._processors = cupy().cuda.Device().attributes["MultiProcessorCount"]

    def __call__(self, x: Any) -> Any:
        """The output (n, f', z, y, x) for an input (n, f, z, y, x)."""
        pieces = self._pieces
        y = new_device_output(pieces.out)
        image = device_workspace((pieces.image_bytes,), np.uint8)
        largest = device_workspace((1,), np.uint32)
        for piece in pieces:
            items = slice(piece.first, piece.first + piece.items)
            first, last = piece.first_plane, piece.first_plane + piece.planes
            seen = x[items, :, first : last + pieces.conv.kernel.z - 1]
            self.lay_out(seen, image, largest)
            self.convolve(image, largest, y[items, :, first:last])
        activate_over_maps(y, pieces.conv.activation)
        return y

    def lay_out(self, x: Any, image: Any, largest: Any) -> None:
        """Write a piece's image, as it is; if that is out of float16's range, again."""
        largest.fill(0)
        items, maps, *size = map(np.int32, x.shape)
        groups = items * self._pieces.block.chunks * 2
        for again in range(2):
            self._lay_out(
                (max(1, self._processors * IMAGE_BLOCKS // groups), min(groups, MOST_GRID_ROWS)),
                (IMAGE_THREADS,),
                (x, *strides_in_elements(x), items, maps, *size, largest, np.int32(again), image),
            )

    def convolve(self, image: Any, largest: Any, y: Any) -> None:
        """Convolve a piece's image, strip by strip."""
        items, maps, *extents = y.shape
        out = Vec3(*extents)
        for strip, kernel in zip(self._pieces.strips, self._kernels, strict=True):
            block, tiles = strip.block, strip.tiles(out)
            count = items * tiles.volume * block.passes
            kernel(
                (min(count, self._processors),),
                (THREADS,),
                (
                    image,
                    *map(np.int32, out + block.kernel - 1),
                    self._weights,
                    *self._factors_and_bias,
                    largest,
                    y,
                    *strides_in_elements(y)[:2],
                    np.int32(maps),
                    *map(np.int32, out),
                    np.int32(block.passes),
                    *map(np.int32, tiles),
                    np.int32(strip.first),
                    np.int64(count),
                ),
                shared_mem=block.shared_bytes,
            )
