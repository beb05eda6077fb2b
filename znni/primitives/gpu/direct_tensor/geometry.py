"""How a direct convolution on tensor cores is divided among blocks, and what they keep.

All of it is arithmetic on sizes: no device is needed to say what a layer takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from znni.core.shapes import Vec3
from znni.network.network import Conv
from znni.primitives.gpu.direct_tensor.number_formats import NumberFormat

# Of a product of a warpgroup: input maps, and voxels along y and x.
IN_MAPS = 16
ROWS = 8
PRODUCT_VOXELS = ROWS * ROWS

# Maps of a voxel that lie together, and the bytes of that.
GROUP = 8
VOXEL_BYTES = 16

# A warpgroup sums four products, of so many maps at most, in 160 registers of a thread. As they
# may lie along z, y and x: where several take as long the first is taken.
SUBTILES = (
    Vec3(4, 1, 1),
    Vec3(2, 2, 1),
    Vec3(2, 1, 2),
    Vec3(1, 2, 2),
    Vec3(1, 4, 1),
    Vec3(1, 1, 4),
)
MOST_COLUMNS = 80

# Warpgroups that sum, one upon the other along z, and one that brings image and weights.
WARPGROUPS = 2
THREADS = 128 * (WARPGROUPS + 1)

# Shared memory that a block may take, less its barriers; of the image for two chunks of maps; of
# weights as many stages as there is room for, of bytes that are worth a barrier each.
SHARED_BYTES = 226 * 1024
IMAGE_PLACES = 2
MOST_STAGE_BYTES = 24 * 1024
LEAST_STAGES, MOST_STAGES = 2, 8
MOST_KEPT = 60  # each has two barriers of 8 bytes in shared memory, of which 1 KiB is left

# Of a multiprocessor, measured on an H200: cycles of a product for each of its columns, or for its
# two sides, which are read from shared memory, and the share of them that it sustains; and for a
# sector of memory that is written, whole or in part: these are read before they are written.
COLUMN_CYCLES = 0.5
SIDE_CYCLES, SIDE_COLUMN_CYCLES = 16, 0.25
SUSTAINED = 0.8
SECTOR_VOXELS = 8
SECTOR_CYCLES, PART_CYCLES = 4.2, 6.8


@dataclass(frozen=True)
class Block:
    """What a block computes at a time, all known when its kernel is compiled.

    Attributes:
        numbers: the format of image and weights.
        kernel: of the convolution.
        chunks: of 16 input maps.
        columns: output maps, a multiple of 8.
        passes: that take these until there are all.
        subtile: products that a warpgroup sums, along z, y and x.
        taps: of the kernel, whose weights are brought together: a stage.
    """

    numbers: NumberFormat
    kernel: Vec3
    chunks: int
    columns: int
    passes: int
    subtile: Vec3
    taps: Vec3

    @property
    def out(self) -> Vec3:
        """Output voxels."""
        return self.subtile * Vec3(WARPGROUPS, ROWS, ROWS)

    @property
    def seen(self) -> Vec3:
        """Input voxels."""
        return self.out + self.kernel - 1

    @property
    def image_bytes(self) -> int:
        """Of what it sees of 16 maps."""
        return 2 * self.numbers.parts * self.seen.volume * VOXEL_BYTES

    @property
    def stage_bytes(self) -> int:
        """Of the weights of a stage."""
        return self.taps.volume * self.numbers.parts * 2 * self.columns * VOXEL_BYTES

    @property
    def all_stages(self) -> int:
        """Of a pass."""
        return self.chunks * self.kernel.volume // self.taps.volume

    @property
    def stages(self) -> int:
        """Places for them: for all, if there is room."""
        room = (SHARED_BYTES - IMAGE_PLACES * self.image_bytes) // self.stage_bytes
        if self.all_stages <= min(room, MOST_KEPT):
            return self.all_stages
        return min(room, MOST_STAGES)

    @property
    def keeps_weights(self) -> bool:
        """Whether weights are brought once for all blocks that follow each other."""
        return self.passes == 1 and self.stages == self.all_stages

    @property
    def fits(self) -> bool:
        """Whether shared memory has room for it."""
        return self.stages >= min(LEAST_STAGES, self.all_stages)

    @property
    def shared_bytes(self) -> int:
        """Of image and weights."""
        return IMAGE_PLACES * self.image_bytes + self.stages * self.stage_bytes

    @property
    def products(self) -> int:
        """Of 64 voxels, 16 input maps and the columns."""
        voxels = WARPGROUPS * self.subtile.volume
        return self.chunks * self.kernel.volume * voxels * self.numbers.terms

    @property
    def product_cycles(self) -> float:
        """Of a multiprocessor, for one of them."""
        return COLUMN_CYCLES * self.columns / self.columns_share

    @property
    def columns_share(self) -> float:
        """Of these cycles, the part that tensor cores are busy, and not waiting for their sides."""
        parts = SIDE_CYCLES + SIDE_COLUMN_CYCLES * self.columns
        return min(1.0, COLUMN_CYCLES * self.columns / parts)

    def tiles(self, out: Vec3) -> Vec3:
        """Blocks along each axis that cover an output."""
        return out.ceil_div(self.out)

    def cycles(self, out: Vec3, row: int) -> float:
        """Of a multiprocessor, for an output: of products or of stores, as these go on beside.

        Args:
            out: its extents.
            row: voxels from row to row, which say how rows lie in sectors.
        """
        lines = self.out.volume // self.out_together * self.columns
        whole = self.out_together // SECTOR_VOXELS
        partial = 0 if row % SECTOR_VOXELS == 0 else 2
        stores = lines * ((whole - partial // 2) * SECTOR_CYCLES + partial * PART_CYCLES)
        block = max(self.products * self.product_cycles / SUSTAINED, stores)
        return self.passes * self.tiles(out).volume * block

    @property
    def out_together(self) -> int:
        """Voxels of a row that are stored together."""
        return ROWS * self.subtile.x


def blocks_for(conv: Conv, numbers: NumberFormat) -> Iterator[Block]:
    """All that shared memory has room for, one of each subtile."""
    chunks = -(-conv.in_features // IN_MAPS)
    if chunks * conv.kernel.volume * numbers.terms > numbers.most_sums:
        return
    passes = -(-conv.out_features // MOST_COLUMNS)
    columns = -(-conv.out_features // (GROUP * passes)) * GROUP
    for subtile in SUBTILES:
        for taps in _stages(conv.kernel):
            block = Block(numbers, conv.kernel, chunks, columns, passes, subtile, taps)
            if block.stage_bytes <= MOST_STAGE_BYTES and block.fits:
                yield block
                break


class Strip(NamedTuple):
    """Part of an output along x, and how it is divided."""

    block: Block
    first: int
    last: int

    def tiles(self, out: Vec3) -> Vec3:
        """Blocks along each axis that cover its part of an output."""
        return self.block.tiles(out._replace(x=self.last - self.first))

    def cycles(self, out: Vec3) -> float:
        """Of a multiprocessor, for its part of an output."""
        return self.block.cycles(out._replace(x=self.last - self.first), out.x)


def strips_for(conv: Conv, numbers: NumberFormat, out: Vec3) -> tuple[Strip, ...]:
    """What takes the fewest cycles: one, or wide blocks and what suits the rest.

    Returns:
        None at all, where shared memory has no room for the kernel, or sums would not keep the
        format's accuracy.
    """
    blocks = list(blocks_for(conv, numbers))
    divisions: list[tuple[Strip, ...]] = []

    def cycles(strip: Strip) -> float:
        return strip.cycles(out)

    for block in blocks:
        divisions.append((Strip(block, 0, out.x),))
        wide = out.x // block.out.x * block.out.x
        if 0 < wide < out.x:
            rest = min((Strip(other, wide, out.x) for other in blocks), key=cycles)
            divisions.append((Strip(block, 0, wide), rest))
    return min(divisions, key=lambda strips: sum(map(cycles, strips)), default=())


def _stages(kernel: Vec3) -> Iterator[Vec3]:
    """Whole planes, rows, or parts of a row of a kernel that divide it, largest first."""
    for planes in _divisors(kernel.z):
        yield kernel._replace(z=planes)
    for rows in _divisors(kernel.y):
        yield Vec3(1, rows, kernel.x)
    for taps in _divisors(kernel.x):
        yield Vec3(1, 1, taps)


def _divisors(number: int) -> list[int]:
    """Largest first."""
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]
