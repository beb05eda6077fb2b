"""The division of a pooled convolution on tensor cores among blocks, and their memory.

This is arithmetic on sizes, which needs no device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from znni.core.shapes import Vec3
from znni.network.layers import Conv
from znni.primitives.gpu.common.hardware import (
    COMMON_BLOCK_SHARED,
    LANES,
    RESERVED_SHARED,
    Chip,
    quickest_pitch,
)
from znni.primitives.gpu.common.kernels import of_axes
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES, TensorFormat

# Sizes of a product: output maps, taps, and pooled voxels side by side along x. A lane has the
# right side's numbers of a voxel for two of the taps.
MAPS = 16
TAPS = 8
VOXELS = 8
LANE_TAPS = TAPS // 2

# Pooled voxels of a block. A warp computes a row, which is long enough to be stored fast. In the
# first blocks, voxels share the most input.
TILES = Vec3(2, 4, 64), Vec3(1, 4, 64), Vec3(1, 2, 64), Vec3(1, 2, 32)

# The most sums that a thread keeps for each of its voxels and maps; and the most taps: with more,
# transforms are faster.
MOST_POSITIONS = 16
MOST_TAPS = 128

# Warps that keep a multiprocessor busy, and warps whose registers it holds.
ENOUGH_WARPS, MOST_WARPS = 16, 24


@dataclass(frozen=True)
class Tile:
    """The work of a block, all known when its kernel is compiled.

    Attributes:
        chip: the chip that computes it.
        in_maps: input maps.
        kernel: extents of the kernel.
        window: extents of the pooling's window.
        numbers: the format of image and weights.
        out: pooled voxels.
    """

    chip: Chip
    in_maps: int
    kernel: Vec3
    window: Vec3
    numbers: TensorFormat
    out: Vec3

    @property
    def seen(self) -> Vec3:
        """Input voxels."""
        return self.out * self.window + self.kernel - 1

    @property
    def steps(self) -> int:
        """Products that follow each other until all taps of all input maps are summed."""
        return -(-self.in_maps * self.kernel.volume // TAPS)

    @property
    def pitch(self) -> int:
        """Words from row to row in shared memory, so that lanes read from different banks."""
        return _pitch(self)

    def tap_offsets(self, pitch: int) -> list[int]:
        """Return where the taps of whole products lie in the image; missing taps lie at 0."""
        row, plane = pitch, pitch * self.seen.y
        offsets = [
            ((map_ * self.seen.z + z) * plane + y * row + x)
            for map_, z, y, x in product(range(self.in_maps), *map(range, self.kernel))
        ]
        return offsets + [0] * (self.steps * TAPS - len(offsets))

    @property
    def image_bytes(self) -> int:
        """Bytes of the input that a block sees, in whole pairs of words: pairs of maxima follow."""
        words = self.in_maps * self.seen.z * self.seen.y * self.pitch
        return self.numbers.parts * -(-words // 2) * 2 * FLOAT_BYTES

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the input, and the maxima of 16 maps of each warp's row."""
        return self.image_bytes + self.warps * MAPS * (self.out.x + VOXELS) * FLOAT_BYTES

    @property
    def warps(self) -> int:
        """Warps of a block: one for each row of pooled voxels."""
        return self.out.z * self.out.y

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * LANES

    @property
    def blocks(self) -> int:
        """Blocks that share a multiprocessor."""
        room = self.chip.shared_bytes // (self.shared_bytes + RESERVED_SHARED)
        return min(MOST_WARPS // self.warps, room)

    @property
    def macros(self) -> dict[str, int]:
        """Macros of the CUDA source."""
        return {
            "IN_MAPS": self.in_maps,
            **of_axes("WINDOW", self.window),
            **of_axes("TILE", self.out),
            **of_axes("SEEN", self.seen),
            "PITCH": self.pitch,
            "STEPS": self.steps,
            "PARTS": self.numbers.parts,
            "BLOCKS": self.blocks,
        }


def tile_for(conv: Conv, window: Vec3, numbers: TensorFormat, chip: Chip) -> Tile | None:
    """Return the first tile that lets enough warps share a multiprocessor, or the most.

    Returns:
        None if registers or shared memory have no room.
    """
    if conv.in_features * conv.kernel.volume > MOST_TAPS or window.volume > MOST_POSITIONS:
        return None
    tiles = (Tile(chip, conv.in_features, conv.kernel, window, numbers, out) for out in TILES)
    fitting = [tile for tile in tiles if tile.shared_bytes <= COMMON_BLOCK_SHARED]

    def warps(tile: Tile) -> int:
        return min(ENOUGH_WARPS, tile.blocks * tile.warps)

    return max(fitting, key=warps, default=None)


@cache
def _pitch(tile: Tile) -> int:
    """Return the pitch for which the right sides of all taps are read in the fewest turns."""

    def loads(pitch: int) -> Iterator[Iterator[int]]:
        offsets = tile.tap_offsets(pitch)
        for first in range(0, len(offsets), LANE_TAPS):
            lanes = product(offsets[first : first + LANE_TAPS], range(VOXELS))
            yield (offset + voxel * tile.window.x for offset, voxel in lanes)

    return quickest_pitch(tile.seen.x, loads)
