"""The pieces that a batch is computed in, so that its float16 image takes little memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from znni.core.shapes import Shape5, Vec3
from znni.network.network import Conv
from znni.primitives.gpu.direct_tensor.geometry import (
    GROUP,
    IN_MAPS,
    PRODUCT_VOXELS,
    VOXEL_BYTES,
    Block,
    Strip,
)

# Output voxels of a piece: many times what the multiprocessors of a GPU compute at a time, as some
# of them wait at its end; few beside what its memory holds, or a small part of all: what a GPU is
# asked to do waits in a queue of a thousand, which should not be empty while the host copies.
PIECE_VOXELS = 2**21
PIECE_SHARE = 1 / 4

# Of a multiprocessor of an H200, operations at its nominal float32 rate in a cycle; and cycles to
# read 8 maps of a voxel of the input, and to write them in float16, measured.
CYCLE_FLOPS = 298
READ_CYCLES, WRITE_CYCLES = 2.5, 0.9

# Of the largest number of a piece; and of a scale and a bias.
LARGEST_BYTES = 4
FLOAT_BYTES = 4


class Piece(NamedTuple):
    """Items of a batch, and output planes of them."""

    first: int
    items: int
    first_plane: int
    planes: int


@dataclass(frozen=True)
class Pieces:
    """A layer's work: some items at a time, or of one item some planes.

    Attributes:
        conv: the layer.
        shape: of the input.
        out: shape of the output.
        strips: that an output is divided into, at least one.
    """

    conv: Conv
    shape: Shape5
    out: Shape5
    strips: tuple[Strip, ...]

    @property
    def block(self) -> Block:
        """One of those, for what they have in common."""
        return self.strips[0].block

    @property
    def _most_voxels(self) -> int:
        return max(PIECE_VOXELS, int(PIECE_SHARE * self.out.n * self.out.size.volume))

    @property
    def items(self) -> int:
        """Of a piece, at most."""
        return _even_share(self.out.n, max(1, self._most_voxels // self.out.size.volume))

    @property
    def planes(self) -> int:
        """Of the output, of a piece, at most: whole blocks, unless it has all."""
        whole = max(strip.block.out.z for strip in self.strips)
        layers = -(-self.out.z // whole)
        most = self._most_voxels // (whole * self.out.y * self.out.x)
        return min(_even_share(layers, max(1, most)) * whole, self.out.z)

    def __iter__(self) -> Iterator[Piece]:
        for first in range(0, self.out.n, self.items):
            items = min(self.items, self.out.n - first)
            for plane in range(0, self.out.z, self.planes):
                yield Piece(first, items, plane, min(self.planes, self.out.z - plane))

    def seen(self, piece: Piece) -> Vec3:
        """Input voxels of each of its items."""
        return self.shape.size._replace(z=piece.planes + self.conv.kernel.z - 1)

    @property
    def voxel_bytes(self) -> int:
        """Of all maps of a voxel of the float16 image."""
        return self.block.chunks * (IN_MAPS // GROUP) * self.block.numbers.parts * VOXEL_BYTES

    @property
    def image_bytes(self) -> int:
        """Of the largest piece's image."""
        return (
            self.items * self.seen(Piece(0, self.items, 0, self.planes)).volume * self.voxel_bytes
        )

    @property
    def workspace_bytes(self) -> int:
        """With its largest number."""
        return self.image_bytes + LARGEST_BYTES

    @property
    def weights_bytes(self) -> int:
        """Of weights, scales and biases."""
        block = self.block
        columns = block.passes * block.columns
        return block.passes * block.all_stages * block.stage_bytes + 2 * FLOAT_BYTES * columns

    @property
    def flops(self) -> float:
        """Of all products, of whole blocks."""
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
        """Share of the GPU's nominal float32 rate that they sustain, on tensor cores."""
        planes = ((piece.items, self.out.size._replace(z=piece.planes)) for piece in self)
        cycles = sum(items * strip.cycles(out) for items, out in planes for strip in self.strips)
        groups = self.block.chunks * (IN_MAPS // GROUP)
        of_group = READ_CYCLES + WRITE_CYCLES * self.block.numbers.parts
        laid_out = self._seen_voxels * groups * of_group
        return self.flops / (CYCLE_FLOPS * (cycles + laid_out))

    @property
    def bytes_moved(self) -> float:
        """Input and output, and the image, which is written and read."""
        return self.shape.nbytes + 2 * self._seen_voxels * self.voxel_bytes + self.out.nbytes

    @property
    def _seen_voxels(self) -> int:
        """Of the images of all pieces."""
        return sum(piece.items * self.seen(piece).volume for piece in self)

    def _tiles(self, strip: Strip) -> int:
        """Blocks of a strip, for all pieces and passes."""
        return strip.block.passes * sum(
            piece.items * strip.tiles(self.out.size._replace(z=piece.planes)).volume
            for piece in self
        )


def _even_share(count: int, most: int) -> int:
    """The smallest share of so many shares as it takes at that size."""
    return -(-count // -(-count // most))
