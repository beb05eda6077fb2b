"""The division among blocks of a convolution whose taps are summed last, and their memory.

This is arithmetic on sizes, which needs no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv
from znni.primitives.gpu.common.hardware import (
    BLACKWELL,
    SECTOR_FLOATS,
    WARPGROUP_THREADS,
    Chip,
    thread_registers,
)
from znni.primitives.gpu.common.kernels import of_axes
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES, TensorFormat

# Voxels of a product; and input maps that a thread brings and multiplies at a time, a unit.
PRODUCT_VOXELS = 64
UNIT_MAPS = 16

# Columns of a product's right side: a set has a multiple of the first, a product at most the last.
COLUMNS_TOGETHER = 8
MOST_COLUMNS = 256

# Warpgroups of a block, which has a multiprocessor to itself. Registers that a thread takes beside
# its sums; for the right side, if warps multiply alone; and for what the compiler loads ahead on
# Blackwell. Products whose sums a thread keeps.
WARPGROUPS = 4, 3, 2
OTHER_REGISTERS = 60
RIGHT_REGISTERS = 16
AHEAD_REGISTERS = 48
PRODUCTS = 1, 2

# Bytes of 16 maps of a product's voxels, and of a row of the right side's matrices; and words that
# keep voxels and pairs of sums in different banks.
UNIT_BYTES = UNIT_MAPS * PRODUCT_VOXELS * FLOAT_BYTES
ROW_BYTES = 16
PADDING = 4

# Units of a warpgroup that are being copied or read. With more, a layer takes longer: shared memory
# and the cache are one memory, and the cache keeps the rest of a sector until the next voxels of
# its row are copied.
LEAST_RING, MOST_RING = 2, 3

# The fewest output voxels of a tile along x, because loads take so many.
NARROWEST = 8

# Cycles of an H200's multiprocessor, measured: to bring a sector of 16 maps, whether all its voxels
# are of one row or not; of a product for a column, and the share of these that other work does not
# hide; and to add one of a voxel's sums to an output. Two warpgroups hide less.
SECTOR_CYCLES = 25
NOT_HIDDEN = 0.3
COLUMN_CYCLES = 0.5
SUM_CYCLES = 7

# Operations of an instruction for a column, in float16 or at the same speed, and the share of them
# that is not hidden if warps multiply alone: they wait for their own products.
COLUMN_FLOPS = 2 * 16 * PRODUCT_VOXELS
WARPS_NOT_HIDDEN = 0.6
SLOWER = {4: 1.0, 3: 1.0, 2: 1.17}


@dataclass(frozen=True)
class ThreadBlock:
    """The work of a block, all known when its kernel is compiled.

    Attributes:
        chip: the chip that computes it.
        numbers: the format of image and weights.
        kernel: extents of the kernel.
        in_maps: input maps.
        out_maps: output maps.
        warpgroups: warpgroups, all of which multiply.
        products: products of 64 voxels that each warpgroup has of a plane.
        ring: units of 16 maps in shared memory: the one that is read, and those brought ahead.
    """

    chip: Chip
    numbers: TensorFormat
    kernel: Vec3
    in_maps: int
    out_maps: int
    warpgroups: int
    products: int
    ring: int

    @property
    def voxels(self) -> int:
        """Input voxels of a plane."""
        return self.warpgroups * self.products * PRODUCT_VOXELS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARPGROUP_THREADS * self.warpgroups

    @property
    def sums(self) -> int:
        """Sums of an input voxel for an output plane."""
        return self.kernel.y * self.kernel.x * self.out_maps

    @property
    def set_columns(self) -> int:
        """Columns of a set: the sums of an output plane, padded."""
        return -(-self.sums // COLUMNS_TOGETHER) * COLUMNS_TOGETHER

    @property
    def columns(self) -> int:
        """Columns of a product: the sets of all output planes that an input plane adds to."""
        return self.kernel.z * self.set_columns

    @property
    def cycle(self) -> int:
        """Columns of the weights: from any of the first sets on, all sets follow in turn."""
        return (2 * self.kernel.z - 1) * self.set_columns

    @property
    def units(self) -> int:
        """Units of 16 input maps."""
        return -(-self.in_maps // UNIT_MAPS)

    @property
    def pitch(self) -> int:
        """Words in shared memory from one of a voxel's sums to the next."""
        return self.voxels + PADDING

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights in shared memory."""
        return self.units * 4 * self.cycle * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of weights, of a plane's complete sums, and of the units of all warpgroups."""
        sums = self.sums * self.pitch * FLOAT_BYTES
        return self.weights_bytes + sums + self.warpgroups * self.products * self.ring * UNIT_BYTES

    @property
    def plane_products(self) -> int:
        """Products of an input plane, each of 64 voxels and 16 maps."""
        return self.warpgroups * self.products * self.units

    @property
    def instructions(self) -> int:
        """Instructions of tensor cores for one of these products."""
        return self.numbers.terms * UNIT_MAPS // self.numbers.depth

    @property
    def column_cycles(self) -> float:
        """Cycles of an instruction for a column that other work does not hide."""
        if self.chip.has_warpgroups:
            return NOT_HIDDEN * COLUMN_CYCLES
        return WARPS_NOT_HIDDEN * COLUMN_FLOPS / self.chip.tensor_flops

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        sums = self.products * self.columns // 2
        if self.chip.has_warpgroups:
            return sums + OTHER_REGISTERS
        ahead = AHEAD_REGISTERS if self.chip.capability >= BLACKWELL else 0
        return sums + OTHER_REGISTERS + RIGHT_REGISTERS + ahead

    @property
    def fits(self) -> bool:
        """True if registers and shared memory have room for the block."""
        return (
            self.columns <= MOST_COLUMNS
            and self.kernel.y * self.kernel.x <= self.voxels
            and self.registers <= thread_registers(self.threads)
            and self.shared_bytes <= self.chip.block_shared_bytes
        )

    @property
    def macros(self) -> Mapping[str, int]:
        """Macros of the CUDA source."""
        return {
            **of_axes("KERNEL", self.kernel),
            "IN_MAPS": self.in_maps,
            "OUT_MAPS": self.out_maps,
            "WARPGROUPS": self.warpgroups,
            "PRODUCTS": self.products,
            "RING": self.ring,
        }


class Tiling(NamedTuple):
    """A division of planes into tiles: a block takes the rows of a tile, voxel after voxel.

    Attributes:
        block: the block that computes a tile.
        y: input rows of a tile.
        x: voxels of a row.
    """

    block: ThreadBlock
    y: int
    x: int

    def tiles(self, out: Vec3) -> tuple[int, int]:
        """Return the tiles along y and x that cover an output."""
        kernel = self.block.kernel
        return -(-out.y // (self.y - kernel.y + 1)), -(-out.x // (self.x - kernel.x + 1))

    @property
    def product_cycles(self) -> float:
        """Cycles of a multiprocessor for a product, with its share of all other work."""
        block = self.block
        sectors = PRODUCT_VOXELS * (1 / SECTOR_FLOATS + (1 - 1 / SECTOR_FLOATS) / self.x)
        products = block.column_cycles * block.instructions * block.columns
        sums = SUM_CYCLES * block.sums / block.units
        return SLOWER[block.warpgroups] * (SECTOR_CYCLES * sectors + products + sums)


@cache
def blocks_for(conv: Conv, numbers: TensorFormat, chip: Chip) -> tuple[ThreadBlock, ...]:
    """Return a block for each division among warpgroups, if there is room for it."""
    maps = conv.in_features, conv.out_features
    blocks = (
        _with_ring(ThreadBlock(chip, numbers, conv.kernel, *maps, warpgroups, products, 1))
        for warpgroups in WARPGROUPS
        for products in PRODUCTS
    )
    return tuple(block for block in blocks if block is not None)


def _with_ring(block: ThreadBlock) -> ThreadBlock | None:
    """Return the block with as many units ahead as there is room for, those of a plane at most."""
    rings = range(min(MOST_RING, block.units + 1), LEAST_RING - 1, -1)
    blocks = (replace(block, ring=ring) for ring in rings)
    return next((block for block in blocks if block.fits), None)


@lru_cache(4096)
def tiling_for(conv: Conv, numbers: TensorFormat, out: Vec3, chip: Chip) -> Tiling:
    """Return the tiling that takes the fewest cycles, the widest of several.

    Args:
        conv: a layer that has blocks.
        numbers: the format of image and weights.
        out: extents of its output.
        chip: the chip that computes it.
    """

    def order(tiling: Tiling) -> tuple[float, int]:
        y, x = tiling.tiles(out)
        return y * x * tiling.block.plane_products * tiling.product_cycles, -tiling.x

    return min(
        (t for block in blocks_for(conv, numbers, chip) for t in _tilings(block, out)), key=order
    )


def _tilings(block: ThreadBlock, out: Vec3) -> Iterator[Tiling]:
    """Yield the tilings of all widths, the widest first, with rows for all voxels.

    A width is the least with which so many tiles cover the output.
    """
    beside = block.kernel - 1
    most = block.voxels // block.kernel.y - beside.x
    while True:
        tiles = -(-out.x // most)
        width = -(-out.x // tiles)
        x = width + beside.x
        yield Tiling(block, min(block.voxels // x, out.y + beside.y), x)
        if width <= NARROWEST:
            return
        most = width - 1


def planes_for(tiling: Tiling, out: Shape5, processors: int) -> int:
    """Return the output planes of a block: all, or fewer to keep multiprocessors busy.

    Args:
        tiling: the division of a plane.
        out: the shape of the output.
        processors: multiprocessors, each of which has a block at a time.
    """
    y, x = tiling.tiles(out.size)
    columns = out.n * y * x

    def turns(planes: int) -> int:
        rounds = -(-columns * -(-out.z // planes) // processors)
        return rounds * (planes + tiling.block.kernel.z)

    return min(range(out.z, 0, -1), key=turns)
