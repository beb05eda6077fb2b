"""Two convolutions of one tap of packed values as one pass: the maps between stay in registers.

It may apply the norm before it as it loads, and add to the packed value in its output's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5, round_up
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.packed_arrays import (
    GROUP,
    RECORD_BYTES,
    VOXEL_BYTES,
    PackedArray,
    groups_for,
    packed_bytes,
)
from znni.network.layers import ConvPair, Operation, PackedLayer, SummedConvPair
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.primitive import Run, convolution_of, convolved_twice
from znni.primitives.gpu.common.activation import activation_source, has_source
from znni.primitives.gpu.common.base import Work
from znni.primitives.gpu.common.hardware import COMMON_BLOCK_SHARED, KIB, LANES, Chip, chip_of
from znni.primitives.gpu.common.kernels import definitions, warp_mma_source
from znni.primitives.gpu.common.number_formats import TensorFormat
from znni.primitives.gpu.common.voxels import MOST
from znni.primitives.gpu.direct_tensor.launch import bounds_of, ranges_source
from znni.primitives.gpu.direct_tensor.weights import scales_of
from znni.primitives.gpu.packed.base import (
    ShapedPackedPrimitive,
    common_source,
    into_output,
    strided,
)

# Maps that a product sums over, and the voxels of its left side.
DEPTH = ROWS = 16

# Warps of a block, and those of one that has a multiprocessor for itself.
WARPS, ALONE_WARPS = 4, 8

# The most registers of a lane for the left side and the sums. Up to the second number, two tiles of
# voxels share the loaded weights.
MOST_REGISTERS, FEW_REGISTERS = 128, 112

# With more shared memory, a block has a multiprocessor for itself.
SHARED_OF_TWO = COMMON_BLOCK_SHARED

# What the blocks of a multiprocessor share: memory and registers. More blocks than the last number
# were not tried.
SHARED_OF_ALL, REGISTERS_OF_ALL, MOST_BLOCKS = 200 * KIB, 2**16, 5

# Registers that the compiler takes for a lane: some, and a factor for those of the tiles. They fit
# the 87 to 214 that it took for 32 to 128 registers of tiles.
OWN_REGISTERS, REGISTERS_OF_TILES = 44, 1.315

# With so many times as many blocks, warps with one tile are faster than those with two. On an H200,
# 5 blocks took 0.90 of the time of 3, but 4 took 1.03.
MORE_BLOCKS = 1.5

# Cycles of a multiprocessor for a product of 16 voxels, 16 maps and 8 maps. Then instructions of a
# lane for a number between the convolutions: its activation, its scales and its rounding.
PRODUCT_CYCLES = 2.5
BETWEEN_INSTRUCTIONS = 16
LANES_TOGETHER = 128


class Layout(NamedTuple):
    """The maps of both convolutions, in whole products.

    Attributes:
        taken: the groups of 8 input maps.
        between: the maps between, in sixteens.
        given: the groups of 8 output maps.
        norms: whether the norm before is applied.
        adds: whether the sums are added to the output's memory.
        parts: the parts of a number.
    """

    taken: int
    between: int
    given: int
    norms: bool
    adds: bool
    parts: int

    @property
    def out_tiles(self) -> int:
        """The groups of output maps, in twos."""
        return round_up(self.given, 2)

    @property
    def _tile_registers(self) -> int:
        return 2 * self.taken * self.parts + 4 * self.out_tiles

    @property
    def tiles(self) -> int:
        """The tiles of 16 voxels of a warp; 0 if registers do not hold one."""
        if self._tile_registers > MOST_REGISTERS:
            return 0
        two = 2 * self._tile_registers <= FEW_REGISTERS
        return 2 if two and self._blocks(1) < MORE_BLOCKS * self._blocks(2) else 1

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block: weights, factors and biases."""
        chunks = self.between // DEPTH
        vectors = LANES * chunks * self.parts * (self.taken + self.out_tiles) // 2
        rows = 8 * chunks + 4 * self.out_tiles + (4 * self.taken if self.norms else 0)
        return VOXEL_BYTES * (vectors + rows)

    @property
    def blocks(self) -> int:
        """The blocks that a multiprocessor has room for."""
        return self._blocks(self.tiles)

    def _blocks(self, tiles: int) -> int:
        """Return the blocks that a multiprocessor has room for, whose warps have so many tiles."""
        if self.shared_bytes > SHARED_OF_TWO:
            return 1
        registers = OWN_REGISTERS + REGISTERS_OF_TILES * tiles * self._tile_registers
        by_registers = int(REGISTERS_OF_ALL / (LANES * WARPS * registers))
        return max(1, min(MOST_BLOCKS, by_registers, SHARED_OF_ALL // self.shared_bytes))

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return ALONE_WARPS if self.blocks == 1 else WARPS

    @property
    def macros(self) -> dict[str, int]:
        """The sizes in the source, by macro."""
        return {
            "IN_GROUPS": self.taken,
            "BETWEEN": self.between,
            "OUT_GROUPS": self.given,
            "OUT_TILES": self.out_tiles,
            "TILES": self.tiles,
            "WARPS": self.warps,
            "BLOCKS": self.blocks,
            "NORMS": int(self.norms),
            "ADDS": int(self.adds),
        }


@dataclass(frozen=True)
class PairWork(Work):
    """Two convolutions of one tap.

    Attributes:
        pair: both convolutions.
        layout: their maps.
        numbers: the format of the values.
        chip: the GPU's chip.
    """

    pair: ConvPair
    layout: Layout
    numbers: TensorFormat
    chip: Chip
    writes_views: ClassVar[bool] = True

    @property
    def flops(self) -> float:
        """Operations of all products."""
        maps = GROUP * (self.layout.taken + self.layout.out_tiles) * self.numbers.terms
        return 2.0 * self.out.n * self.out.size.volume * self.layout.between * maps

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that products sustain, with activations."""
        layout, voxels = self.layout, self.out.n * self.out.size.volume
        products = layout.between // DEPTH * (layout.taken + layout.out_tiles)
        between = ROWS * layout.between * BETWEEN_INSTRUCTIONS / LANES_TOGETHER
        cycles = voxels / ROWS * (products * self.numbers.terms * PRODUCT_CYCLES + between)
        return self.flops / (self.chip.cycle_flops * cycles)

    @property
    def array_bytes(self) -> int:
        """Bytes of input and output."""
        return sum(packed_bytes(it, self.numbers.parts) for it in (self.shape, self.out))

    @property
    def bytes_moved(self) -> float:
        """Bytes of input and output, and of the value to which sums are added."""
        added = packed_bytes(self.out, self.numbers.parts) * self.layout.adds
        return self.array_bytes + added

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, factors, biases and records."""
        layout = self.layout._replace(norms=False)
        return layout.shared_bytes + RECORD_BYTES * layout.given


@dataclass(frozen=True)
class GpuPackedPair(ShapedPackedPrimitive[PairWork]):
    """Two convolutions of one tap of packed values, on tensor cores."""

    family: ClassVar[str] = "gpu_packed_pair"
    version: ClassVar[int] = 2

    def work(self, layer: Operation, shape: Shape5) -> PairWork | None:
        """Decline maps whose weights shared memory does not hold."""
        if not isinstance(layer, PackedLayer) or layer.parts != self.numbers.parts:
            return None
        pair = convolution_of(layer.layer)
        if not isinstance(pair, ConvPair) or not (layer.reads and layer.writes) or layer.sums:
            return None
        out, chip, norm = convolved_twice(pair, shape), chip_of(self.device), layer.norm
        if out is None or chip is None or layer.leaves:
            return None
        if (norm and norm.activation != "identity") or pair.after.activation != "identity":
            return None
        if not has_source(pair.conv) or pair.conv.activation == "softmax":
            return None
        layout = Layout(
            groups_for(shape.f),
            round_up(pair.conv.out_features, DEPTH),
            groups_for(out.f),
            norm is not None,
            isinstance(layer.layer, SummedConvPair),
            layer.parts,
        )
        fits = layout.tiles and layout.shared_bytes <= chip.block_shared_bytes
        if not fits or layout.taken % 2 or shape.size.volume > MOST:
            return None
        return PairWork(shape, out, pair, layout, self.numbers, chip)

    def prepare(self, work: PairWork, weights: ConvWeights | None) -> Run:
        """Compile the kernel; order the weights as lanes take them."""
        pair, layout, out = work.pair, work.layout, work.out
        first = conv_weights(pair.conv, weights)
        later = conv_weights(pair.after, weights and weights.after)
        kernel = kernel_with_shared(source(work), "pair", layout.shared_bytes)
        taken, given = GROUP * layout.taken, GROUP * layout.out_tiles
        constants = [
            cupy().asarray(it)
            for it in (
                by_output(weights_by_lane(first.weight, layout.between, taken, self.numbers)),
                weights_by_lane(later.weight, given, layout.between, self.numbers),
                rows_by_lane(first, layout.between),
                rows_by_lane(later, given),
            )
        ]
        bounds = [
            number
            for conv, each in ((pair.conv, first), (pair.after, later))
            for number in bounds_of(conv.activation, each)[:2]
        ]
        processors = cupy().cuda.Device().attributes["MultiProcessorCount"]
        needed = -(-out.size.volume // (ROWS * layout.tiles * layout.warps))
        blocks = min(needed, max(1, processors * layout.blocks // out.n))

        def run(x: PackedArray, other: PackedArray | None = None) -> Any:
            y = new_device_output(out)
            if other is not None and not y.lies_with(other):
                y.voxels[...] = other.voxels
            flat = [np.int32(is_flat(it)) for it in (x, y)]
            arguments = [*strided(x), *constants, *bounds, *strided(y)]
            arguments += [*map(np.int32, out.size), *flat]
            if other is not None:
                arguments.append(other.records)
            if layout.norms and x.norm:
                arguments += x.norm
            kernel(
                (blocks, out.n), (layout.warps * LANES,), arguments, shared_mem=layout.shared_bytes
            )
            return y

        return into_output(out, layout.parts, run)


def is_flat(array: PackedArray) -> bool:
    """Return whether the voxels of a group have no gaps."""
    _, _, size_y, size_x = array.shape[1:]
    _, _, plane, row = array.voxels.strides[:4]
    return bool(row == size_x * VOXEL_BYTES and plane == size_y * row)


def by_output(weights: NDArray[np.float16]) -> NDArray[np.float16]:
    """Return weights whose first axis was that of the input maps, by output maps first."""
    return np.ascontiguousarray(weights.swapaxes(0, 1))


def weights_by_lane(
    weight: Float32, given: int, taken: int, numbers: TensorFormat
) -> NDArray[np.float16]:
    """Return weights in the order of lanes, padded with zeros.

    Args:
        weight: (f', f, 1, 1, 1).
        given: the output maps, in sixteens.
        taken: the input maps, in sixteens.
        numbers: the format of the weights.

    Returns:
        float16, times the powers of two of ``scales_of``. The axes are (16 input maps, 16 output
        maps, part, lane, group of the output maps, group of the input maps, map of two). A lane has
        one map of each group of output maps, and two neighbours of each group of input maps.
    """
    whole = np.zeros((given, taken), np.float32)
    scaled = weight[..., 0, 0, 0] * scales_of(weight)[:, None]
    whole[tuple(map(slice, scaled.shape))] = scaled
    parts = numbers.split(whole).astype(np.float16)
    split = parts.reshape(-1, given // DEPTH, 2, GROUP, taken // DEPTH, 2, LANES // GROUP, 2)
    # (part, out, group, map, in, group, two maps, map of two)
    by_lane = np.ascontiguousarray(split.transpose(4, 1, 0, 3, 6, 2, 5, 7))
    return by_lane.reshape(taken // DEPTH, given // DEPTH, len(parts), LANES, 2, 2, 2)


def rows_by_lane(weights: ConvWeights, maps: int) -> Float32:
    """Return what sums are multiplied by, and the bias: (map, 2), zero beyond the last map."""
    rows = np.zeros((maps, 2), np.float32)
    rows[: len(weights.bias)] = np.stack([1 / scales_of(weights.weight), weights.bias], axis=1)
    return rows


def source(work: PairWork) -> str:
    """Return the CUDA source of ``pair``."""
    return "\n".join(
        (
            definitions(work.layout.macros),
            common_source(work.numbers),
            ranges_source(work.numbers),
            activation_source(work.pair.conv.activation, rounded=True),
            warp_mma_source(work.numbers),
            source_beside(__file__, "pair.cu"),
        )
    )
