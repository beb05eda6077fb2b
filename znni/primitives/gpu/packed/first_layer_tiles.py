"""The division of a packed first layer among blocks, and their memory.

This is arithmetic on sizes, which needs no device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product

from znni.core.shapes import Vec3
from znni.machine.packed_arrays import GROUP, SUMS_BYTES, groups_for
from znni.network.layers import Conv
from znni.primitives.gpu.common.division import even_share
from znni.primitives.gpu.common.hardware import (
    BLACKWELL,
    COMMON_BLOCK_SHARED,
    LANES,
    RESERVED_SHARED,
    Chip,
    quickest_pitch,
    thread_registers,
)
from znni.primitives.gpu.common.kernels import of_axes
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT_BYTES, TensorFormat

# Input maps of a first layer, and taps of all of them, beyond which transforms are faster.
MOST_MAPS = 4
MOST_TAPS = 2048

# Sizes of a product: voxels side by side along x, and pairs of taps. A lane has two of the pairs,
# and two voxels that lie 8 apart.
PRODUCT_VOXELS = 16
PAIRS = 8
LANE_PAIRS = PAIRS // 2

# Groups of 8 output maps that are summed in one pass, and sums of products that a thread keeps. For
# Blackwell the compiler needs more registers beside them.
MOST_GROUPS = 4
MOST_SUMS, BLACKWELL_SUMS = 16, 8

# Output voxels of a block. All its warps have equally many.
TILES = (
    Vec3(4, 8, 16),
    Vec3(2, 8, 32),
    Vec3(1, 32, 16),
    Vec3(1, 16, 32),
    Vec3(2, 8, 16),
    Vec3(1, 16, 16),
    Vec3(1, 8, 32),
)
WARPS = 8
THREADS = WARPS * LANES

# Registers of a thread beside its sums, and further ones if it adds up maps of pairs; and the most
# blocks that share a multiprocessor.
OTHER_REGISTERS, SUM_REGISTERS = 48, 8
MOST_BLOCKS = 4

# Cycles of an H200's multiprocessor: for a product, if tensor cores are fast enough; to copy one
# number of the input; to store a group of 8 maps of a voxel; and to add them up. They are estimated
# from the count of instructions.
PRODUCT_CYCLES = 2.0
BRING_CYCLES = 0.3
STORE_CYCLES = 0.7
SUM_CYCLES = 0.2
PRODUCT_FLOPS = 2 * PRODUCT_VOXELS * 2 * PAIRS * GROUP


@dataclass(frozen=True)
class Tile:
    """The work of a block at a time, all known when its kernel is compiled.

    Attributes:
        chip: the chip that computes it.
        in_maps: input maps.
        kernel: extents of the kernel.
        groups: groups of 8 output maps that are summed in one pass.
        passes: passes until all output maps are computed.
        out: output voxels.
        numbers: the format of the numbers that are multiplied.
        sums: whether each output map is added up, for a norm.
    """

    chip: Chip
    in_maps: int
    kernel: Vec3
    groups: int
    passes: int
    out: Vec3
    numbers: TensorFormat = FLOAT16
    sums: bool = False

    @property
    def units(self) -> int:
        """Products of voxels that a warp has."""
        return self.out.volume // (PRODUCT_VOXELS * WARPS)

    @property
    def seen(self) -> Vec3:
        """Input voxels."""
        return self.out + self.kernel - 1

    @property
    def row_pairs(self) -> tuple[int, ...]:
        """First taps of the pairs of a row; the last pair of an odd row begins one tap early."""
        whole = tuple(range(0, self.kernel.x - 1, 2))
        return (*whole, max(0, self.kernel.x - 2)) if self.kernel.x % 2 else whole

    @property
    def steps(self) -> int:
        """Products that follow each other until all taps of all input maps are summed."""
        rows = self.in_maps * self.kernel.z * self.kernel.y
        return -(-rows * len(self.row_pairs) // PAIRS)

    @property
    def pitch(self) -> int:
        """Words from row to row in shared memory, so that lanes read from different banks."""
        return _pitch(self)

    def pair_offsets(self, pitch: int) -> list[int]:
        """Return where the pairs of whole products lie in the image; missing pairs lie at 0."""
        seen = self.seen
        rows = product(range(self.in_maps), range(self.kernel.z), range(self.kernel.y))
        offsets = [
            ((map_ * seen.z + z) * seen.y + y) * pitch + x
            for map_, z, y in rows
            for x in self.row_pairs
        ]
        return offsets + [0] * (self.steps * PAIRS - len(offsets))

    @property
    def shared_bytes(self) -> int:
        """Bytes of the input that a block sees, several times, and of the sums of its warps.

        The input is there as it was given, and in words of two numbers for each part.
        """
        words = (1 + self.numbers.parts) * self.in_maps * self.seen.z * self.seen.y * self.pitch
        sums = self.sums * WARPS * self.groups * self.passes * GROUP * SUMS_BYTES
        return sums + FLOAT_BYTES * (words + 1)  # the last word is made of one number more

    @property
    def blocks(self) -> int:
        """Blocks that share a multiprocessor: as many as have registers and shared memory."""
        room = self.chip.shared_bytes // (self.shared_bytes + RESERVED_SHARED)
        beside = OTHER_REGISTERS + SUM_REGISTERS * self.sums * (self.numbers.parts - 1)
        needed = 4 * self.units * self.groups + beside
        return next(
            blocks
            for blocks in range(min(MOST_BLOCKS, room), 0, -1)
            if blocks == 1 or thread_registers(blocks * THREADS) >= needed
        )

    @property
    def products(self) -> int:
        """Products of a block."""
        of_groups = self.groups * self.passes
        return WARPS * self.units * self.steps * of_groups * self.numbers.terms

    @property
    def cycles(self) -> float:
        """Cycles of a multiprocessor for a block."""
        of_product = max(PRODUCT_CYCLES, PRODUCT_FLOPS / self.chip.tensor_flops)
        brought = self.in_maps * self.seen.volume * BRING_CYCLES
        of_store = STORE_CYCLES * self.numbers.parts + self.sums * SUM_CYCLES
        stored = self.out.volume * self.groups * self.passes * of_store
        return self.products * of_product + brought + stored

    @property
    def macros(self) -> dict[str, int]:
        """Macros of the CUDA source."""
        return {
            **of_axes("TILE", self.out),
            **of_axes("SEEN", self.seen),
            "KERNEL_X": self.kernel.x,
            "IN_MAPS": self.in_maps,
            "PITCH": self.pitch,
            "STEPS": self.steps,
            "EIGHTS": self.groups,
            "PASSES": self.passes,
            "UNITS": self.units,
            "SUMS_MAPS": int(self.sums),
            "THREADS": THREADS,
            "BLOCKS": self.blocks,
        }


@lru_cache(maxsize=2**12)  # a search asks for the same outputs again and again
def tile_for(
    conv: Conv, out: Vec3, chip: Chip, numbers: TensorFormat = FLOAT16, *, sums: bool = False
) -> Tile | None:
    """Return the tile with which an output takes the fewest cycles.

    Args:
        conv: the convolution.
        out: extents of the output.
        numbers: the format of the numbers that are multiplied.
        sums: whether each output map is added up.

    Returns:
        None if there are too many taps.
    """
    if conv.in_features * conv.kernel.volume > MOST_TAPS:
        return None
    groups = groups_for(conv.out_features)
    together = even_share(groups, MOST_GROUPS)
    passes = -(-groups // together)
    tiles = (
        Tile(chip, conv.in_features, conv.kernel, together, passes, tile, numbers, sums)
        for tile in TILES
    )
    most_sums = BLACKWELL_SUMS if chip.capability >= BLACKWELL else MOST_SUMS
    fitting = [
        tile
        for tile in tiles
        if tile.units * together <= most_sums
        and tile.shared_bytes <= COMMON_BLOCK_SHARED
        and tile.seen.x <= THREADS  # each thread brings voxels of one column
    ]
    return min(fitting, key=lambda tile: out.ceil_div(tile.out).volume * tile.cycles, default=None)


@cache
def _pitch(tile: Tile) -> int:
    """Return the pitch for which the left sides of all products are read in the fewest turns."""

    def loads(pitch: int) -> Iterator[Iterator[int]]:
        offsets = tile.pair_offsets(pitch)
        for first in range(0, len(offsets), LANE_PAIRS):
            lanes = product(offsets[first : first + LANE_PAIRS], range(PRODUCT_VOXELS // 2))
            yield (offset + voxel for offset, voxel in lanes)

    return quickest_pitch(tile.seen.x, loads)
