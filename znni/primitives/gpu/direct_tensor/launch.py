"""Launching a direct convolution on tensor cores: sources, and what runs it."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from znni.core.shapes import ONE, Vec3
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, kernel_with_shared, source_beside
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.packed_arrays import VOXEL_BYTES, PackedArray, in_whole_groups, strides_in_voxels
from znni.network.layers import Activation
from znni.network.weights import ConvWeights
from znni.primitives.gpu.common.activation import activate_over_maps, activation_source
from znni.primitives.gpu.common.hardware import MOST_GRID_ROWS
from znni.primitives.gpu.common.kernels import (
    common_code,
    definitions,
    of_axes,
    products_source,
    strides_in_elements,
    warp_mma_source,
)
from znni.primitives.gpu.common.number_formats import (
    FLOAT16,
    FLOAT16_PAIR,
    FLOAT64_BYTES,
    TensorFormat,
)
from znni.primitives.gpu.common.voxels import strided
from znni.primitives.gpu.direct_tensor.geometry import ThreadBlock
from znni.primitives.gpu.direct_tensor.weights import scales_of, sums_of, weights_by_stage
from znni.primitives.gpu.direct_tensor.work import MOST_SUMMING, UNPACKED, Packing, Piece, Pieces

# Threads of a block that lays out the image, and how many such blocks a multiprocessor holds.
IMAGE_THREADS = 256
IMAGE_BLOCKS = 6

# Bytes in which a packed output counts its strides.
WORD_BYTES = 4

# An image whose largest number has an exponent in this range keeps its precision in float16. Other
# images are scaled. float16 holds numbers below 2**16, and one bit is for rounding up.
LEAST_EXPONENT = {FLOAT16: -8, FLOAT16_PAIR: -2}
MOST_EXPONENT = 15


class Gathering(NamedTuple):
    """The gathering of an image from an input.

    Attributes:
        step: the samples of the input between those of the image.
        shifts: the first samples, each of which gives maps of its own.
    """

    step: Vec3
    shifts: Vec3


IN_PLACE = Gathering(ONE, ONE)


class Launcher:
    """Runs a layer piece by piece: it makes the float16 image of a piece, and convolves it.

    Args:
        pieces: the layer's work.
        weights: the layer's weights, which are laid out now and kept.
        gathering: how the image is gathered from an input.
        bounds: the numbers that bound the outputs, if other weights also make outputs of the value.
    """

    def __init__(
        self,
        pieces: Pieces,
        weights: ConvWeights,
        gathering: Gathering = IN_PLACE,
        bounds: OutputBounds | None = None,
    ) -> None:
        block = pieces.block
        self._pieces = pieces
        self._gathering = gathering
        source = image_source(block.numbers, gathering)
        self._lay_out = compiled(source).get_function("lay_out")
        self._kernels = [
            [
                kernel_with_shared(
                    convolution_source(strip.block, pieces.conv.activation, number, pieces.packing),
                    "convolve",
                    strip.block.shared_bytes,
                )
                for number in range(len(strip.block.sums))
            ]
            for strip in pieces.strips
        ]
        scales = scales_of(weights.weight)
        self._weights = cupy().asarray(weights_by_stage(weights.weight, scales, block))
        rows = np.zeros((2, block.passes * block.columns), np.float32)
        rows[:, : len(scales)] = 1 / scales, weights.bias
        self._factors_and_bias = cupy().asarray(rows)
        self._processors = cupy().cuda.Device().attributes["MultiProcessorCount"]
        self._bounds = bounds or bounds_of(pieces.conv.activation, weights)
        self._sums = None
        if pieces.packing.sums:
            self._processors = min(self._processors, MOST_SUMMING)
            maps = in_whole_groups(pieces.out.f)
            shape = pieces.out.n, pieces.sum_parts(self._processors), maps, 2
            sums = cupy().empty((pieces.sums_bytes // FLOAT64_BYTES,), np.float64)
            self._sums = sums[: prod(shape)].reshape(shape)

    def __call__(self, x: Any, other: PackedArray | None = None) -> Any:
        """Return the output (n, f', z, y, x) for an input (n, f, z, y, x); both may be packed.

        Args:
            x: the input.
            other: the packed value to add, if there is one. If it does not lie in the output's
                memory, it is copied there.
        """
        pieces = self._pieces
        y = new_device_output(pieces.out)
        if other is not None and not y.lies_with(other):
            y.voxels[...] = other.voxels
        if self._sums is not None:
            self._sums.fill(0)
            y = y._replace(sums=self._sums)
        if isinstance(x, PackedArray):
            self.convolve(x, x.records, y, other)
            activate_over_maps(y, pieces.conv.activation)
            return y
        image = device_workspace((pieces.image_bytes,), np.uint8)
        largest = device_workspace((1,), np.uint32)
        for piece in pieces:
            items = slice(piece.first, piece.first + piece.items)
            first, last = piece.first_plane, piece.first_plane + piece.planes
            self.lay_out(x[items, :, first * self._gathering.step.z :], piece, image, largest)
            made = y if isinstance(y, PackedArray) else y[items, :, first:last]
            self.convolve(image, largest, made)
        activate_over_maps(y, pieces.conv.activation)
        return y

    def lay_out(self, x: Any, piece: Piece, image: Any, largest: Any) -> None:
        """Write a piece's image as it is; if it is out of float16's range, write it again."""
        largest.fill(0)
        groups = piece.items * self._pieces.block.chunks * 2
        sizes = piece.items, self._pieces.shape.f, *self._pieces.seen_by(piece), *x.shape[1:]
        for again in range(2):
            self._lay_out(
                (max(1, self._processors * IMAGE_BLOCKS // groups), min(groups, MOST_GRID_ROWS)),
                (IMAGE_THREADS,),
                (
                    x,
                    *strides_in_elements(x),
                    *map(np.int32, sizes),
                    largest,
                    np.int32(again),
                    image,
                ),
            )

    def convolve(self, image: Any, largest: Any, y: Any, other: PackedArray | None = None) -> None:
        """Convolve a piece's image, strip by strip.

        Args:
            image: the image, or a packed value.
            largest: the largest number of an image, or the records of a packed value.
            y: the output, which may be packed.
            other: the packed value in the output's memory, if it is added.
        """
        items, maps, *extents = y.shape
        reads, writes = isinstance(image, PackedArray), isinstance(y, PackedArray)
        phases = self._pieces.packing.phases
        out = Vec3(*extents) // phases
        maps = (in_whole_groups(maps) if writes else maps) * phases.volume
        strides: tuple[Any, ...] = ()
        made: tuple[Any, ...]
        noted: tuple[Any, ...]
        if reads:
            *of_planes, of_rows = strides_in_voxels(image)
            image, strides = image.voxels, (*of_planes, np.int32(of_rows))
        if writes:
            words = (stride * (VOXEL_BYTES // WORD_BYTES) for stride in strides_in_voxels(y))
            made = y.voxels, *words
            noted = y.records, self._bounds.of_input, self._bounds.least
        else:
            made, noted = strided(y), ()
        if self._sums is not None:
            noted += (self._sums, np.int32(self._sums.shape[1]))
        if other is not None:
            noted += other.records, self._bounds.of_other
        seen = self._pieces.seen(out)
        for strip, kernels in zip(self._pieces.strips, self._kernels, strict=True):
            block, tiles = strip.block, strip.tiles(out)
            count = items * tiles.volume * block.passes
            blocks = min(items * strip.blocks(out), self._processors)
            first = 0
            for chunks, kernel in zip(block.sums, kernels, strict=True):
                kernel(
                    (blocks,),
                    (block.threads,),
                    (
                        image if reads else image[first * seen.volume * block.chunk_voxel_bytes :],
                        *map(np.int32, seen),
                        *strides,
                        self._weights[:, first:],
                        *self._factors_and_bias,
                        largest,
                        *made,
                        np.int32(maps),
                        *map(np.int32, out),
                        np.int32(block.passes),
                        *map(np.int32, tiles),
                        np.int32(strip.first),
                        np.int64(count),
                        *noted,
                    ),
                    shared_mem=block.shared_bytes,
                )
                first += chunks


def image_source(numbers: TensorFormat, gathering: Gathering = IN_PLACE) -> str:
    """Return the CUDA source of ``lay_out``."""
    values = {"PARTS": numbers.parts, "GATHERS": int(gathering != IN_PLACE)}
    values |= of_axes("STEP", gathering.step) | of_axes("SHIFTS", gathering.shifts)
    parts = (definitions(values), ranges_source(numbers), source_beside(__file__, "image.cu"))
    return "\n".join(parts)


class OutputBounds(NamedTuple):
    """Numbers that bound a layer's outputs.

    No output is larger than the largest input times the first number, plus the second, plus the
    third times the largest number of the value to which the layer adds.
    """

    of_input: np.float32
    least: np.float32
    of_other: np.float32


def bounds_of(activation: Activation, weights: ConvWeights) -> OutputBounds:
    """Return the numbers that bound a layer's outputs.

    Most activations make no number larger. The values of sigmoid are at most 1.
    """
    if activation == "sigmoid":
        return OutputBounds(np.float32(0), np.float32(1), np.float32(0))
    of_bias = np.float32(np.abs(weights.bias).max())
    return OutputBounds(np.float32(sums_of(weights.weight).max()), of_bias, np.float32(1))


def convolution_source(
    block: ThreadBlock, activation: Activation, number: int = 0, packing: Packing = UNPACKED
) -> str:
    """Return the CUDA source of ``convolve``.

    Args:
        block: the work of a block.
        activation: of the layer.
        number: the pass over input maps, whose sums are added to those of the passes before it.
        packing: whether input and output are packed.
    """
    sums = block.sums
    values = {
        **of_axes("PHASES", packing.phases),
        "READS_PACKED": int(packing.reads),
        "WRITES_PACKED": int(packing.writes),
        "SUMS_MAPS": int(packing.sums),
        "ADDS_TO_OUTPUT": int(packing.adds),
        "IMAGE_GROUPS": packing.groups,
        "JOINED": int(packing.reads and block.chunks > 1),
        **of_axes("KERNEL", block.kernel),
        **of_axes("STEP", block.step),
        "CHUNKS": sums[number],
        "ALL_CHUNKS": block.chunks,
        "ADDS": int(number > 0),
        "ADDS_UP": int(block.adds_up),
        "LAST": int(number + 1 == len(sums)),
        "COLUMNS": block.columns,
        "PARTS": block.numbers.parts,
        **of_axes("TILES", block.subtile),
        **of_axes("TAPS", block.taps),
        "STAGES": block.stages,
        "IMAGE_PLACES": block.image_places,
        "KEEP_IMAGE": int(block.keeps_image),
        "KEEP_WEIGHTS": int(block.keeps_weights),
        "STACKS_TAPS": int(block.stacks_taps),
        "TAKES_TURNS": int(block.takes_turns),
    }
    if block.chip.has_warpgroups:
        products = products_source(
            block.chip,
            block.columns,
            block.numbers,
            left_in_registers=False,
            widths=min(block.kernel.z, block.subtile.z) if block.stacks_taps else 1,
        )
        kernel = "convolution_wgmma.cu"
    else:
        products, kernel = warp_mma_source(block.numbers), "convolution_mma.cu"
    parts = (
        definitions(values),
        ranges_source(block.numbers),
        common_code("float16_pair.cuh") if packing.writes else "",
        common_code("lane_sums.cuh") if packing.sums else "",
        activation_source(activation, rounded=packing.writes),
        products,
        common_code("store_if.cuh"),
        source_beside(__file__, "convolution.cuh"),
        source_beside(__file__, kernel),
    )
    return "\n".join(parts)


def ranges_source(numbers: TensorFormat) -> str:
    """Return CUDA functions for powers of two that bring numbers into float16's range."""
    values = {"LEAST_EXPONENT": LEAST_EXPONENT[numbers], "MOST_EXPONENT": MOST_EXPONENT}
    return definitions(values) + source_beside(__file__, "ranges.cuh")
