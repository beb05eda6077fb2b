"""How a convolution whose taps are summed last is divided among blocks, and what they keep.

All of it is arithmetic on sizes: no device is needed to say what a layer takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

from znni.core.shapes import Shape5, Vec3
from znni.network.network import Conv
from znni.primitives.gpu.lowered_tensor.number_formats import NumberFormat

# Of a product: voxels; and input maps that a thread brings and multiplies at a time.
PRODUCT_VOXELS = 64
UNIT_MAPS = 16

# Columns of its right side, of which a set is a multiple of so many; at most.
COLUMNS_TOGETHER = 8
MOST_COLUMNS = 256

# Warpgroups of a block, which has a multiprocessor to itself, and the registers of its threads;
# what a thread takes beside its sums; and products of which it keeps sums.
REGISTERS = {4: 128, 3: 168, 2: 255}
OTHER_REGISTERS = 60
PRODUCTS = 1, 2

# Shared memory of a block; 16 maps of a product's voxels; bytes of a row of the right side's
# matrices; and words that keep voxels and pairs of sums in different banks.
SHARED_BYTES = 227 * 1024
UNIT_BYTES = UNIT_MAPS * PRODUCT_VOXELS * 4
ROW_BYTES = 16
PADDING = 4

# Units of a warpgroup that are on their way or read. More take longer: what shared memory has, the
# cache has not, which keeps the rest of a sector until the next voxels of its row are copied.
LEAST_RING, MOST_RING = 2, 3

# Output voxels of a tile along x, below which rows are not divided: loads are of so many.
NARROWEST = 8

# Of a multiprocessor, measured on an H200: cycles to bring a sector of 16 maps, of 8 voxels of a
# row or fewer; the share of products' that other work does not hide, and these for a column; and
# to add one of its voxels' sums to an output. Two warpgroups are too few to hide as much.
SECTOR_VOXELS = 8
SECTOR_CYCLES = 25
NOT_HIDDEN = 0.3
COLUMN_CYCLES = 0.5
SUM_CYCLES = 7
SLOWER = {4: 1.0, 3: 1.0, 2: 1.17}


@dataclass(frozen=True)
class Block:
    """What a block computes, all known when its kernel is compiled.

    Attributes:
        numbers: the format of image and weights.
        kernel: of the convolution.
        in_maps: input maps.
        out_maps: output maps.
        warpgroups: that multiply.
        products: of 64 voxels that each of them has of a plane.
        ring: units of 16 maps of these that are brought ahead, with the one that is read.
    """

    numbers: NumberFormat
    kernel: Vec3
    in_maps: int
    out_maps: int
    warpgroups: int
    products: int
    ring: int

    @property
    def voxels(self) -> int:
        """Of the input, of a plane."""
        return self.warpgroups * self.products * PRODUCT_VOXELS

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * self.warpgroups

    @property
    def sums(self) -> int:
        """Of a voxel of the input, for an output plane."""
        return self.kernel.y * self.kernel.x * self.out_maps

    @property
    def set_columns(self) -> int:
        """Columns of these."""
        return -(-self.sums // COLUMNS_TOGETHER) * COLUMNS_TOGETHER

    @property
    def columns(self) -> int:
        """Of a product: for all output planes that an input plane adds to."""
        return self.kernel.z * self.set_columns

    @property
    def cycle(self) -> int:
        """Columns of the weights: as many sets may begin with any."""
        return (2 * self.kernel.z - 1) * self.set_columns

    @property
    def units(self) -> int:
        """Of 16 input maps."""
        return -(-self.in_maps // UNIT_MAPS)

    @property
    def pitch(self) -> int:
        """Words in shared memory from one of a voxel's sums to the next."""
        return self.voxels + PADDING

    @property
    def weights_bytes(self) -> int:
        """Of all, in shared memory."""
        return self.units * 4 * self.cycle * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Of weights, of a plane's complete sums, and of the units of all warpgroups."""
        sums = self.sums * self.pitch * 4
        return self.weights_bytes + sums + self.warpgroups * self.products * self.ring * UNIT_BYTES

    @property
    def plane_products(self) -> int:
        """Of 64 voxels and 16 maps, for an input plane."""
        return self.warpgroups * self.products * self.units

    @property
    def registers(self) -> int:
        """Of a thread."""
        return self.products * self.columns // 2 + OTHER_REGISTERS

    @property
    def fits(self) -> bool:
        """Whether registers and shared memory have room for it."""
        return (
            self.columns <= MOST_COLUMNS
            and self.kernel.y * self.kernel.x <= self.voxels
            and self.registers <= REGISTERS[self.warpgroups]
            and self.shared_bytes <= SHARED_BYTES
        )

    @property
    def macros(self) -> Mapping[str, int]:
        """Of the CUDA source."""
        return {
            "KERNEL_Z": self.kernel.z,
            "KERNEL_Y": self.kernel.y,
            "KERNEL_X": self.kernel.x,
            "IN_MAPS": self.in_maps,
            "OUT_MAPS": self.out_maps,
            "WARPGROUPS": self.warpgroups,
            "PRODUCTS": self.products,
            "RING": self.ring,
        }


class Tiling(NamedTuple):
    """How blocks lie: each has rows of a plane side by side, voxel after voxel.

    Attributes:
        block: of the tiles.
        y: rows of a tile, of the input.
        x: voxels of a row.
    """

    block: Block
    y: int
    x: int

    def tiles(self, out: Vec3) -> tuple[int, int]:
        """Along y and x, that cover an output."""
        kernel = self.block.kernel
        return -(-out.y // (self.y - kernel.y + 1)), -(-out.x // (self.x - kernel.x + 1))

    @property
    def product_cycles(self) -> float:
        """Of a multiprocessor, for 64 voxels and 16 maps, with their share of all that is done."""
        block = self.block
        sectors = PRODUCT_VOXELS * (1 / SECTOR_VOXELS + (1 - 1 / SECTOR_VOXELS) / self.x)
        products = NOT_HIDDEN * COLUMN_CYCLES * block.numbers.terms * block.columns
        sums = SUM_CYCLES * block.sums / block.units
        return SLOWER[block.warpgroups] * (SECTOR_CYCLES * sectors + products + sums)


@cache
def blocks_for(conv: Conv, numbers: NumberFormat) -> tuple[Block, ...]:
    """All that registers and shared memory have room for, of each division among warpgroups."""
    maps = conv.in_features, conv.out_features
    blocks = (
        _with_ring(Block(numbers, conv.kernel, *maps, warpgroups, products, 1))
        for warpgroups in REGISTERS
        for products in PRODUCTS
    )
    return tuple(block for block in blocks if block is not None)


def _with_ring(block: Block) -> Block | None:
    """With units ahead for a plane at most, as many as there is room for, if there is for a few."""
    rings = range(min(MOST_RING, block.units + 1), LEAST_RING - 1, -1)
    blocks = (replace(block, ring=ring) for ring in rings)
    return next((block for block in blocks if block.fits), None)


@lru_cache(4096)
def tiling_for(conv: Conv, numbers: NumberFormat, out: Vec3) -> Tiling:
    """The one whose tiles take the fewest cycles, the widest of these.

    Args:
        conv: a layer that there are blocks for.
        numbers: the format of image and weights.
        out: extents of its output.
    """

    def order(tiling: Tiling) -> tuple[float, int]:
        y, x = tiling.tiles(out)
        return y * x * tiling.block.plane_products * tiling.product_cycles, -tiling.x

    return min((t for block in blocks_for(conv, numbers) for t in _tilings(block, out)), key=order)


def _tilings(block: Block, out: Vec3) -> Iterator[Tiling]:
    """For each number of tiles along x, as narrow as they may be, with rows for all voxels."""
    beside = block.kernel - 1
    widest = block.voxels // block.kernel.y - beside.x
    for tiles in range(-(-out.x // widest), out.x + 1):
        x = -(-out.x // tiles) + beside.x
        yield Tiling(block, min(block.voxels // x, out.y + beside.y), x)
        if x - beside.x <= NARROWEST:
            return


def planes_for(tiling: Tiling, out: Shape5, processors: int) -> int:
    """Output planes that a block computes: all, or fewer where that keeps multiprocessors busy.

    Args:
        tiling: of a plane.
        out: shape of the output.
        processors: multiprocessors, each of which has a block at a time.
    """
    y, x = tiling.tiles(out.size)
    columns = out.n * y * x

    def turns(planes: int) -> int:
        rounds = -(-columns * -(-out.z // planes) // processors)
        return rounds * (planes + tiling.block.kernel.z)

    return min(range(out.z, 0, -1), key=turns)
