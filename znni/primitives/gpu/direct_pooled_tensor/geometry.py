"""How a pooled convolution on tensor cores is divided among blocks, and what they keep.

All of it is arithmetic on sizes: no device is needed to say what a layer takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

from znni.core.shapes import Vec3
from znni.network.network import Conv

LANES = 32

# Of a product: output maps, taps, and pooled voxels side by side along x. A lane has a right side's
# numbers of a voxel for two of the taps.
MAPS = 16
TAPS = 8
VOXELS = 8
LANE_TAPS = TAPS // 2

# Pooled voxels of a block, a warp for each row, which is long enough to be stored well. The first
# are seen through the fewest others beside them.
TILES = Vec3(2, 4, 64), Vec3(1, 4, 64), Vec3(1, 2, 64), Vec3(1, 2, 32)

# Sums that a thread keeps for each of its voxels and maps; taps beyond which transforms are faster.
MOST_POSITIONS = 16
MOST_TAPS = 128

# Shared memory of a block on any GPU of compute capability 8.0 or more; and of a Hopper GPU's
# multiprocessor, which gives each block one KiB more.
MOST_SHARED = 99 * 1024
SHARED_TOGETHER = 228 * 1024
ENOUGH_WARPS, MOST_WARPS = 16, 24

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Tile:
    """What a block computes, all known when its kernel is compiled.

    Attributes:
        in_maps: input maps.
        kernel: of the convolution.
        window: over which it is pooled.
        parts: numbers of tf32 that sum to one of the image, and of the weights: one or two.
        out: pooled voxels.
    """

    in_maps: int
    kernel: Vec3
    window: Vec3
    parts: int
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
    def terms(self) -> int:
        """Products for one: all of parts but that of the low ones, which is below the rounding."""
        return 2 * self.parts - 1

    @property
    def pitch(self) -> int:
        """Words from row to row in shared memory, such that lanes read from different banks."""
        return _pitch(self)

    def tap_offsets(self, pitch: int) -> list[int]:
        """Where taps of whole products lie in the image; those that there are none of, at 0."""
        row, plane = pitch, pitch * self.seen.y
        offsets = [
            ((map_ * self.seen.z + z) * plane + y * row + x)
            for map_, z, y, x in product(range(self.in_maps), *map(range, self.kernel))
        ]
        return offsets + [0] * (self.steps * TAPS - len(offsets))

    @property
    def image_bytes(self) -> int:
        """Of what a block sees, in whole pairs of words: pairs of maxima follow it."""
        words = self.in_maps * self.seen.z * self.seen.y * self.pitch
        return self.parts * -(-words // 2) * 2 * FLOAT_BYTES

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: with the maxima of 16 maps, of each warp's row."""
        return self.image_bytes + self.warps * MAPS * (self.out.x + VOXELS) * FLOAT_BYTES

    @property
    def warps(self) -> int:
        """Of a block: one for each row of pooled voxels."""
        return self.out.z * self.out.y

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * LANES

    @property
    def blocks(self) -> int:
        """That share a multiprocessor."""
        return min(MOST_WARPS // self.warps, SHARED_TOGETHER // (self.shared_bytes + 1024))

    @property
    def macros(self) -> dict[str, int]:
        """Of the CUDA source."""
        return {
            "IN_MAPS": self.in_maps,
            "WINDOW_Z": self.window.z,
            "WINDOW_Y": self.window.y,
            "WINDOW_X": self.window.x,
            "TILE_Z": self.out.z,
            "TILE_Y": self.out.y,
            "TILE_X": self.out.x,
            "SEEN_Z": self.seen.z,
            "SEEN_Y": self.seen.y,
            "SEEN_X": self.seen.x,
            "PITCH": self.pitch,
            "STEPS": self.steps,
            "PARTS": self.parts,
            "BLOCKS": self.blocks,
        }


def tile_for(conv: Conv, window: Vec3, parts: int) -> Tile | None:
    """The first tile that lets enough warps share a multiprocessor, or the most.

    Returns:
        None where registers or shared memory have no room.
    """
    if conv.in_features * conv.kernel.volume > MOST_TAPS or window.volume > MOST_POSITIONS:
        return None
    tiles = (Tile(conv.in_features, conv.kernel, window, parts, out) for out in TILES)
    fitting = [tile for tile in tiles if tile.shared_bytes <= MOST_SHARED]

    def warps(tile: Tile) -> int:
        return min(ENOUGH_WARPS, tile.blocks * tile.warps)

    return max(fitting, key=warps, default=None)


@cache
def _pitch(tile: Tile) -> int:
    """The smallest of those for which reading takes the fewest turns."""
    pitches = range(tile.seen.x, tile.seen.x + LANES)
    return min(pitches, key=lambda pitch: _turns(tile, pitch))


def _turns(tile: Tile, pitch: int) -> int:
    """Of shared memory, to read the right sides of all taps: words of a bank take turns."""
    offsets, turns = tile.tap_offsets(pitch), 0
    for first in range(0, len(offsets), LANE_TAPS):
        words = {
            offset + voxel * tile.window.x
            for offset, voxel in product(offsets[first : first + LANE_TAPS], range(VOXELS))
        }
        banks = [word % LANES for word in words]
        turns += max(map(banks.count, banks))
    return turns
