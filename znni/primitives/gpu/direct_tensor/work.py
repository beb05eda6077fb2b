"""The work of a direct convolution on tensor cores, in pieces, and its cost.

A batch is computed in pieces, so that its float16 image takes little memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

from znni.core.shapes import ONE, Shape5, Vec3
from znni.machine.packed_arrays import (
    RECORD_BYTES,
    SUMS_BYTES,
    groups_for,
    in_whole_groups,
    packed_bytes,
)
from znni.plans.cost import Cost, Memory
from znni.primitives.gpu.common.base import ConvolutionWork, Pass
from znni.primitives.gpu.common.division import even_share
from znni.primitives.gpu.common.hardware import LANES, WARPGROUP_THREADS
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.direct_tensor.geometry import (
    GROUP,
    IN_MAPS,
    PRODUCT_VOXELS,
    WARPGROUPS,
    ThreadBlock,
)
from znni.primitives.gpu.direct_tensor.strips import Strip

# Output voxels of a piece. They are many more than a GPU computes at once, because some of its
# multiprocessors wait at the end of a piece. They are far fewer than the memory holds. The pieces
# of a large output are this share of it: a GPU's queue holds a thousand launches, and should not be
# empty while the host copies.
PIECE_VOXELS = 2**21
PIECE_SHARE = 1 / 4

# Kernels count the voxels of an item's image in 32 bits, and one more step of all threads.
MOST_IMAGE_VOXELS = 2**31 - 1

# Cycles of an H200's multiprocessor to read 8 maps of a voxel of the input, and to write them in
# float16, measured.
READ_CYCLES, WRITE_CYCLES = 2.5, 0.9

# The most blocks of a launch that adds up maps, and the warps of a block that do so.
MOST_SUMMING = 256
SUMMING_WARPS = WARPGROUPS * WARPGROUP_THREADS // LANES

# Bytes of the largest number of a piece.
LARGEST_BYTES = 4


class Packing(NamedTuple):
    """The packed values of a convolution.

    Attributes:
        reads: whether the input is packed.
        writes: whether the output is packed.
        groups: the groups of 8 input maps, if the input is packed.
        adds: whether another packed value is added to the output, in whose memory it lies.
        sums: whether each map of a packed output is added up, for a norm.
        phases: voxel ``v`` of the sums has the voxels ``phases * v + phase`` of the packed output,
            for each phase. Its maps are ordered by group of 8 output maps, phase and map.
    """

    reads: bool = False
    writes: bool = False
    groups: int = 0
    adds: bool = False
    sums: bool = False
    phases: Vec3 = ONE


UNPACKED = Packing()


class Piece(NamedTuple):
    """Items of a batch, and planes of their output."""

    first: int
    items: int
    first_plane: int
    planes: int


@dataclass(frozen=True)
class Pieces(ConvolutionWork):
    """The work of a layer: some items at a time, or some planes of one item.

    Attributes:
        strips: the strips that an output is divided into, at least one.
        processors: multiprocessors of the GPU.
        packing: whether input and output are packed. A packed output has one scale, so its image is
            one piece.
    """

    strips: tuple[Strip, ...]
    processors: int = 1
    packing: Packing = UNPACKED
    writes_views: ClassVar[bool] = True

    @property
    def block(self) -> ThreadBlock:
        """One of the strips' blocks, for what they have in common."""
        return self.strips[0].block

    @cached_property
    def _most_voxels(self) -> int:
        return max(PIECE_VOXELS, int(PIECE_SHARE * self.out.n * self.out.size.volume))

    @cached_property
    def sums_size(self) -> Vec3:
        """Extents of the sums: those of the output, or of each of its phases."""
        return self.out.size // self.packing.phases

    @cached_property
    def items(self) -> int:
        """Items of a piece, at most."""
        if self._is_whole:
            return self.out.n
        return even_share(self.out.n, max(1, self._most_voxels // self.out.size.volume))

    @cached_property
    def planes(self) -> int:
        """Planes of a piece's output, at most: those of whole blocks, or all."""
        if self._is_whole:
            return self.sums_size.z
        layers = -(-self.out.z // self._block_planes)
        most = self._most_voxels // (self._block_planes * self.out.y * self.out.x)
        share = even_share(layers, max(1, min(most, self._countable_layers)))
        return min(share * self._block_planes, self.out.z)

    @property
    def is_countable(self) -> bool:
        """True if the kernels can count the voxels of the smallest piece's image."""
        if self._is_whole:
            return self.packing.reads or self.shape.size.volume <= MOST_IMAGE_VOXELS
        return self._countable_layers > 0

    @property
    def _is_whole(self) -> bool:
        """True if all is one piece."""
        return self.packing.reads or self.packing.writes

    @cached_property
    def _block_planes(self) -> int:
        """Planes of the largest block's output."""
        return max(strip.block.out.z for strip in self.strips)

    @cached_property
    def _countable_layers(self) -> int:
        """The most layers of blocks whose image the kernels can count."""
        planes = MOST_IMAGE_VOXELS // (self.shape.y * self.shape.x)
        return (planes - self.conv.kernel.z + 1) // self._block_planes

    def __iter__(self) -> Iterator[Piece]:
        for first in range(0, self.out.n, self.items):
            items = min(self.items, self.out.n - first)
            for plane in range(0, self.sums_size.z, self.planes):
                yield Piece(first, items, plane, min(self.planes, self.sums_size.z - plane))

    @cached_property
    def _kinds(self) -> tuple[tuple[int, Piece], ...]:
        """A piece of each size, with the number of pieces of that size."""
        sizes = Counter((piece.items, piece.planes) for piece in self)
        return tuple(
            (times, Piece(0, items, 0, planes)) for (items, planes), times in sizes.items()
        )

    def seen(self, sums: Vec3) -> Vec3:
        """Return the input voxels that sums of some extents depend on."""
        return (sums - 1) * self.conv.stride + self.conv.kernel

    def seen_by(self, piece: Piece) -> Vec3:
        """Return the input voxels of each of a piece's items."""
        return self.seen(self.sums_size._replace(z=piece.planes))

    @property
    def voxel_bytes(self) -> int:
        """Bytes of all maps of a voxel of the float16 image."""
        return self.block.chunks * self.block.chunk_voxel_bytes

    @property
    def image_bytes(self) -> int:
        """Bytes of the largest piece's image; a packed input is its own image."""
        if self.packing.reads:
            return 0
        return (
            self.items
            * self.seen_by(Piece(0, self.items, 0, self.planes)).volume
            * self.voxel_bytes
        )

    @cached_property
    def most_sum_parts(self) -> int:
        """The most parts of an item's voxels that have sums of their own; see ``sum_parts``."""
        return self.sum_parts(MOST_SUMMING)

    def sum_parts(self, processors: int) -> int:
        """Return the number of parts of an item's voxels that have sums of their own.

        If a GPU computes all places of an item at once, it is the number of warps of these places.
        If there are more places, it is the number of warps of all blocks of a launch.
        """
        tiles = max(strip.tiles(self.out.size).volume for strip in self.strips)
        return SUMMING_WARPS * min(tiles, processors)

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums of the maps, which are set to zero and added to."""
        maps = in_whole_groups(self.out.f)
        if not self.packing.sums:
            return 0
        return SUMS_BYTES * self.out.n * self.most_sum_parts * maps

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the largest piece's image and of its largest number."""
        return 0 if self.packing.reads else self.image_bytes + LARGEST_BYTES

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, scales and biases, and of the records of a packed output."""
        block = self.block
        columns = block.passes * block.columns
        records = RECORD_BYTES * groups_for(self.out.f) if self.packing.writes else 0
        return (
            records
            + self.sums_bytes
            + block.passes * block.all_stages * block.stage_bytes
            + 2 * FLOAT_BYTES * columns
        )

    @cached_property
    def flops(self) -> float:
        """Operations of all products of whole blocks."""
        return sum(
            2.0
            * self._tiles(strip)
            * strip.block.products
            * PRODUCT_VOXELS
            * IN_MAPS
            * strip.block.columns
            for strip in self.strips
        )

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that these sustain, on tensor cores."""
        cycles = sum(
            times * self._cycles(strip, piece.items, self.sums_size._replace(z=piece.planes))
            for times, piece in self._kinds
            for strip in self.strips
        )
        groups = self.block.chunks * (IN_MAPS // GROUP)
        of_group = READ_CYCLES + WRITE_CYCLES * self.block.numbers.parts
        laid_out = 0 if self.packing.reads else self._seen_voxels * groups * of_group
        return self.flops / (self.block.chip.cycle_flops * (cycles + laid_out))

    def _cycles(self, strip: Strip, items: int, out: Vec3) -> float:
        """Return the cycles of all multiprocessors for a strip, of which some may have no block."""
        idle = max(1.0, self.processors / (items * strip.blocks(out)))
        packing = self.packing
        cycles = strip.cycles(out, packed=packing.writes, adds=packing.adds, sums=packing.sums)
        return items * cycles * idle

    @property
    def bytes_moved(self) -> float:
        """Bytes of input and output, and of the image, which is written and read."""
        return sum(self._pass_bytes)

    @property
    def passes(self) -> dict[str, Pass]:
        """Laying out the image, and its products with the weights."""
        laid_out, convolved = self._pass_bytes
        products = {"convolve": Pass(self.flops, convolved, on_tensor_cores=True)}
        return products if self.packing.reads else {"lay_out": Pass(0.0, laid_out), **products}

    @property
    def _pass_bytes(self) -> tuple[int, int]:
        """Bytes of laying out, and of the products."""
        outputs = 2 * len(self.block.sums) - 1  # later passes read what earlier ones wrote
        image = self._seen_voxels * self.voxel_bytes
        made = self._packed_bytes(self.out) if self.packing.writes else self.out.nbytes
        made = (outputs + int(self.packing.adds)) * made + 2 * self.sums_bytes
        if self.packing.reads:
            return 0, self._packed_bytes(self.shape) + made
        return self.shape.nbytes + image, image + made

    @property
    def cost(self) -> Cost:
        """The cost of a call. Packed values have the bytes of their parts."""
        found = super().cost
        if self.packing == UNPACKED:
            return found
        arrays = self._packed_bytes(self.shape) if self.packing.reads else self.shape.nbytes
        arrays += self._packed_bytes(self.out) if self.packing.writes else self.out.nbytes
        memory = Memory.beside(arrays, self.workspace_bytes, self.resident_bytes)
        return replace(found, memory=memory)

    def _packed_bytes(self, shape: Shape5) -> int:
        """Return the bytes of a packed value."""
        return packed_bytes(shape, self.block.numbers.parts)

    @cached_property
    def _seen_voxels(self) -> int:
        """Voxels of the images of all pieces."""
        return sum(times * piece.items * self.seen_by(piece).volume for times, piece in self._kinds)

    def _tiles(self, strip: Strip) -> int:
        """Return the blocks of a strip, for all pieces and passes."""
        return strip.block.passes * sum(
            times * piece.items * strip.tiles(self.sums_size._replace(z=piece.planes)).volume
            for times, piece in self._kinds
        )
