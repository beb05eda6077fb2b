"""Convolution of few float32 maps on tensor cores, whose output is packed.

A product sums over taps, not over input maps, so one map fills it. A block scales the input that it
sees by the input's largest number, and rounds it to float16 in shared memory. Nothing is unfolded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, kernel_with_shared, source_beside
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.packed_arrays import (
    GROUP,
    RECORD_BYTES,
    SUMS_BYTES,
    PackedArray,
    groups_for,
    in_whole_groups,
    packed_bytes,
)
from znni.network.layers import Activation, Conv, Operation, PackedLayer
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.primitive import Run, convolved
from znni.primitives.gpu.common.activation import activation_source, has_source
from znni.primitives.gpu.common.base import ConvolutionWork, Pass
from znni.primitives.gpu.common.hardware import LANES, chip_of
from znni.primitives.gpu.common.kernels import (
    common_code,
    definitions,
    strides_in_elements,
    warp_mma_source,
)
from znni.primitives.gpu.common.number_formats import FLOAT64_BYTES, FLOAT_BYTES
from znni.primitives.gpu.direct_tensor.launch import bounds_of, ranges_source
from znni.primitives.gpu.direct_tensor.weights import scales_of
from znni.primitives.gpu.direct_tensor.work import LARGEST_BYTES, MOST_SUMMING
from znni.primitives.gpu.packed.base import (
    ShapedPackedPrimitive,
    common_source,
    into_output,
    strided,
)
from znni.primitives.gpu.packed.first_layer_tiles import (
    LANE_PAIRS,
    MOST_MAPS,
    PAIRS,
    PRODUCT_FLOPS,
    THREADS,
    Tile,
    tile_for,
)

# Blocks for each multiprocessor that look for the largest number of the input.
LARGEST_BLOCKS = 8

# Kernels count the rows of the input and the tiles in 32 bits, and one more step of all warps.
MOST_COUNT = 2**31


@dataclass(frozen=True)
class FirstLayerWork(ConvolutionWork):
    """A convolution of few maps.

    Attributes:
        tile: what a block computes at a time.
    """

    tile: Tile
    writes_views: ClassVar[bool] = True

    @property
    def tiles(self) -> int:
        """Tiles of all outputs."""
        return self.out.n * self.out.size.ceil_div(self.tile.out).volume

    @property
    def flops(self) -> float:
        """Operations of all products."""
        return float(PRODUCT_FLOPS * self.tiles * self.tile.products)

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that products sustain, with loads and stores."""
        return self.flops / (self.tile.chip.cycle_flops * self.tiles * self.tile.cycles)

    @property
    def array_bytes(self) -> int:
        """Bytes of input and output."""
        return self.shape.nbytes + packed_bytes(self.out, self.tile.numbers.parts)

    @property
    def bytes_moved(self) -> float:
        """Bytes of the input, which is read twice, of the output, and of the sums of its maps."""
        return self.shape.nbytes + self.array_bytes + self.sums_bytes

    @property
    def passes(self) -> dict[str, Pass]:
        """The search for the largest number, and the convolution."""
        return {
            "find_largest": Pass(0.0, self.shape.nbytes),
            "convolve": Pass(self.flops, self.array_bytes + self.sums_bytes, on_tensor_cores=True),
        }

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the largest number."""
        return LARGEST_BYTES

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, their scales, biases, places of taps, records and sums of maps."""
        tile = self.tile
        groups = tile.groups * tile.passes
        weights = 2 * tile.numbers.parts * groups * GROUP * 2 * PAIRS * tile.steps
        rows = 2 * FLOAT_BYTES * groups * GROUP
        records = groups_for(self.out.f) * RECORD_BYTES
        return weights + rows + FLOAT_BYTES * PAIRS * tile.steps + records + self.sums_bytes

    @property
    def sum_parts(self) -> int:
        """Blocks that add up maps, at most."""
        return min(self.tiles, MOST_SUMMING * self.tile.blocks)

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums of all output maps."""
        if not self.tile.sums:
            return 0
        return SUMS_BYTES * self.out.n * self.sum_parts * in_whole_groups(self.out.f)


@dataclass(frozen=True)
class GpuPackedFirstLayer(ShapedPackedPrimitive[FirstLayerWork]):
    """Convolution of up to 4 maps that are not packed, whose output is.

    It may add up each map for a norm.
    """

    family: ClassVar[str] = "gpu_packed_first_layer"
    version: ClassVar[int] = 3

    def work(self, layer: Operation, shape: Shape5) -> FirstLayerWork | None:
        """Decline many maps, parts of groups, softmax, and kernels that see too much."""
        if not isinstance(layer, PackedLayer) or not isinstance(layer.layer, Conv):
            return None
        conv = layer.layer
        if layer.reads or not layer.writes or layer.parts != self.numbers.parts:
            return None
        if layer.norm or layer.leaves:
            return None
        if conv.in_features > MOST_MAPS:
            return None
        if conv.activation == "softmax" or not has_source(conv):
            return None
        out, chip = convolved(conv, shape), chip_of(self.device)
        if out is None or chip is None:
            return None
        tile = tile_for(conv, out.size, chip, self.numbers, sums=layer.sums)
        if tile is None:
            return None
        work, rows = FirstLayerWork(shape, out, conv, tile), shape.n * shape.f * shape.z * shape.y
        return work if max(rows, work.tiles) < MOST_COUNT else None

    def prepare(self, work: FirstLayerWork, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels; lay out the weights."""
        run = FirstLayerLauncher(work, conv_weights(work.conv, weights))
        return into_output(work.out, self.numbers.parts, run)


class FirstLayerLauncher:
    """Runs a layer: it finds the largest number of the input, then convolves.

    Args:
        work: the layer's work.
        weights: the layer's weights, which are laid out now and kept.
    """

    def __init__(self, work: FirstLayerWork, weights: ConvWeights) -> None:
        tile = work.tile
        self._work = work
        code = source(tile, work.conv.activation)
        self._find_largest = compiled(code).get_function("find_largest")
        self._convolve = kernel_with_shared(code, "convolve", tile.shared_bytes)
        scales = scales_of(weights.weight)
        scaled = weights.weight * scales[:, None, None, None, None]
        rows = np.zeros((2, tile.groups * tile.passes * GROUP), np.float32)
        rows[:, : len(scales)] = 1 / scales, weights.bias
        self._constants = [
            cupy().asarray(array)
            for array in (weights_by_lane(scaled, tile), pairs_by_lane(tile), *rows)
        ]
        bounds = bounds_of(work.conv.activation, weights)
        self._bounds = bounds.of_input, bounds.least  # no value is added
        self._processors = cupy().cuda.Device().attributes["MultiProcessorCount"]
        self._sums = None
        if tile.sums:
            parts = min(work.tiles, self._processors * tile.blocks)
            shape = work.out.n, parts, in_whole_groups(work.out.f), 2
            # A block writes the same ones in each call. The others stay zero.
            sums = cupy().zeros((work.sums_bytes // FLOAT64_BYTES,), np.float64)
            self._sums = sums[: prod(shape)].reshape(shape)

    def __call__(self, x: Any) -> Any:
        """Return the packed output (n, f', z, y, x) for an input (n, f, z, y, x)."""
        y = new_device_output(self._work.out)._replace(sums=self._sums)
        largest = device_workspace((1,), np.uint32)
        self.find_largest(x, largest)
        self.convolve(x, largest, y)
        return y

    def find_largest(self, x: Any, largest: Any) -> None:
        """Write the bits of the largest number of an input."""
        largest.fill(0)
        n, _, *size = self._work.shape
        self._find_largest(
            (self._processors * LARGEST_BLOCKS,),
            (THREADS,),
            (x, *strides_in_elements(x), largest, *map(np.int32, (n, *size))),
        )

    def convolve(self, x: Any, largest: Any, y: PackedArray) -> None:
        """Convolve an input whose largest number is known."""
        work, tile = self._work, self._work.tile
        voxels, *out_planes, out_rows, records = strided(y)
        *of_planes, of_rows = strides_in_elements(x)
        blocks = min(work.tiles, self._processors * tile.blocks)
        map_sums = () if self._sums is None else (self._sums,)
        self._convolve(
            (blocks,),
            (THREADS,),
            (
                x,
                *of_planes,
                np.int32(of_rows),
                *map(np.int32, work.shape.size),
                largest,
                *self._constants,
                *self._bounds,
                voxels,
                *out_planes,
                np.int32(out_rows),
                records,
                np.int32(groups_for(work.out.f)),
                *map(np.int32, work.out.size),
                *map(np.uint32, work.out.size.ceil_div(tile.out)),
                np.uint32(work.tiles),
                *map_sums,
            ),
            shared_mem=tile.shared_bytes,
        )


def source(tile: Tile, activation: Activation) -> str:
    """Return the CUDA source of ``find_largest`` and ``convolve``."""
    parts = (
        definitions(tile.macros),
        common_source(tile.numbers),
        ranges_source(tile.numbers),
        common_code("lane_sums.cuh") if tile.sums else "",
        activation_source(activation, rounded=True),
        warp_mma_source(tile.numbers),
        common_code("store_if.cuh"),
        source_beside(__file__, "first_layer.cu"),
    )
    return "\n".join(parts)


def weights_by_lane(weight: Float32, tile: Tile) -> NDArray[np.float16]:
    """Return weights in the order of lanes, padded with zeros.

    Args:
        weight: (f', f, z, y, x), in float16's range.
        tile: says how taps are paired.

    Returns:
        float16 (pass, step, part, group of 8 output maps, lane, pair of the lane's two, tap of the
        pair). A lane has one of 8 maps, and two of 8 pairs, 4 apart.
    """
    maps, *_, last = weight.shape
    paired = np.zeros((*weight.shape[:-1], len(tile.row_pairs), 2), np.float32)
    for index, first in enumerate(tile.row_pairs):
        known = 2 * index - first  # 1 if the pair before has the first tap
        taps = weight[..., first + known : min(first + 2, last)]
        paired[..., index, known : known + taps.shape[-1]] = taps
    rows = np.zeros((tile.passes * tile.groups * GROUP, tile.steps * PAIRS, 2), np.float32)
    flat = paired.reshape(maps, -1, 2)
    rows[:maps, : flat.shape[1]] = flat
    parts = tile.numbers.split(rows).astype(np.float16)
    split = parts.reshape(
        -1, tile.passes, tile.groups, GROUP, tile.steps, PAIRS // LANE_PAIRS, LANE_PAIRS, 2
    )
    by_lane = split.transpose(1, 4, 0, 2, 3, 6, 5, 7)
    return np.ascontiguousarray(by_lane).reshape(
        tile.passes, tile.steps, len(parts), tile.groups, LANES, PAIRS // LANE_PAIRS, 2
    )


def pairs_by_lane(tile: Tile) -> NDArray[np.int32]:
    """Return the words that lanes read for pairs of taps: (step, lane of 4, 2)."""
    offsets = np.array(tile.pair_offsets(tile.pitch), np.int32)
    split = offsets.reshape(tile.steps, PAIRS // LANE_PAIRS, LANE_PAIRS)
    return np.ascontiguousarray(split.transpose(0, 2, 1))
