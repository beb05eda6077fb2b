"""The division of a direct convolution among blocks, warps and threads of a GPU.

This is arithmetic on sizes, which needs no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv
from znni.primitives.gpu.common.division import divisors
from znni.primitives.gpu.common.hardware import BANKS, COMMON_BLOCK_SHARED, KIB, LANES, SCHEDULERS
from znni.primitives.gpu.common.kernels import compiler_options, of_axes

# Sixteen warps share a multiprocessor, with 128 registers a thread. Sums take most of these. The
# others hold a column of inputs, the weights of a tap and addresses.
WARPS_TOGETHER = 16
MOST_SUMS = 64
MOST_MAPS = 8
MOST_ROWS = 32
MOST_COLUMN_TAPS = 9

# How the warps of a block may lie. If they lie side by side along x, their voxels of a map are
# neighbours in memory.
WARPS = 4
ARRANGEMENTS = (Vec3(4, 1, 1), Vec3(2, 2, 1), Vec3(2, 1, 2), Vec3(1, 2, 2), Vec3(1, 1, 4))

# The shared memory with which four blocks of four warps share a multiprocessor of a Hopper GPU.
SHARED_TOGETHER = 55 * KIB

# Instructions of a thread that are not products: for a word that it copies to shared memory, and
# for a value that it stores. Stores wait for each other, and longer if a block's rows are shorter.
# The wait is in instructions times words, measured on an H200. The four schedulers share one unit
# for shared memory, which takes four cycles if a warp reads vectors of four.
BRING_INSTRUCTIONS = 5
STORE_INSTRUCTIONS = 5
STORE_WAIT = 2048
VECTOR = 4
CONTENTION = 0.3  # the part of the shorter of issuing and reading that adds to the longer

# With so few taps, sums are computed faster than stored. Blocks then store one group of maps, so
# that they write to fewer pages at a time.
FEW_TAPS = 8


@dataclass(frozen=True)
class Tile:
    """The work of a block at a time, all known when its kernel is compiled.

    Attributes:
        kernel: extents of the kernel.
        window: extents of the pooling's window, (1, 1, 1) without pooling.
        taps_z: planes of the kernel that a stage computes.
        taps_y: taps of the kernel along y that share a column of inputs in registers.
        maps: output maps that a thread sums.
        rows: pooled voxels along y that a thread sums.
        lanes_x: lanes of a warp side by side along x; the others lie further along y.
        warps: warps of a block along each axis.
        one_input_stage: whether all the input of a block is one stage, and is brought once.
    """

    kernel: Vec3
    window: Vec3
    taps_z: int
    taps_y: int
    maps: int
    rows: int
    lanes_x: int
    warps: Vec3
    one_input_stage: bool

    @property
    def out(self) -> Vec3:
        """Pooled voxels of a block."""
        return self.warps * Vec3(1, LANES // self.lanes_x * self.rows, self.lanes_x)

    @property
    def seen(self) -> Vec3:
        """Input voxels of a stage."""
        taps = self.kernel._replace(z=self.taps_z)
        return self.out * self.window + taps - 1

    @property
    def pitch(self) -> int:
        """Words from row to row in shared memory.

        Lanes further along y read rows that lie ``rows`` further down. Padding keeps the words that
        a warp reads in different banks, if any padding does.
        """
        least = -(-self.seen.x // self.window.x) * self.window.x
        if self.lanes_x == LANES:
            return least
        return least + _padding(least % BANKS, self.lanes_x, self.rows * self.window.y % BANKS)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the weights of two stages, and the input of two or of all."""
        tile = _whole_vectors(self.seen.z * self.seen.y * self.pitch)
        inputs = 1 if self.one_input_stage else 2
        return 4 * (inputs * tile + 2 * self.stage_weights)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARPS * LANES

    def groups_together(self, out_features: int) -> int:
        """Return the groups that a block computes one after the other."""
        if not self.one_input_stage:
            return 1
        few = self.window.volume == 1 and self.kernel.volume <= FEW_TAPS
        return 1 if few else self.groups(out_features)

    @property
    def maps_pitch(self) -> int:
        """Weights of a tap for one group, in whole vectors."""
        return _whole_vectors(self.maps)

    @property
    def stage_weights(self) -> int:
        """Weights of a stage for one group of maps."""
        return self.taps_z * self.kernel.y * self.kernel.x * self.maps_pitch

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the compiler, which define the source's macros."""
        sizes = {
            **of_axes("KERNEL", self.kernel),
            **of_axes("WINDOW", self.window),
            "TAPS_Z": self.taps_z,
            "TAPS_Y": self.taps_y,
            "MAPS": self.maps,
            "ROWS": self.rows,
            "LANES_X": self.lanes_x,
            **of_axes("WARPS", self.warps),
            "BLOCKS": WARPS_TOGETHER // WARPS,
            "PITCH": self.pitch,
            "ONE_INPUT_STAGE": int(self.one_input_stage),
        }
        return compiler_options(sizes)

    def groups(self, out_features: int) -> int:
        """Return how many groups of output maps there are."""
        return -(-out_features // self.maps)

    def tiles(self, out: Vec3) -> Vec3:
        """Return the tiles along each axis that cover an output of so many pooled voxels."""
        return out.ceil_div(self.out)

    def instructions(self, conv: Conv, out: Shape5) -> float:
        """Predict the instructions that a scheduler issues or waits for, to choose tiles by."""
        blocks = out.n * self.tiles(out.size).volume
        return blocks * self.instructions_of_block(conv) * WARPS / SCHEDULERS

    def instructions_of_block(self, conv: Conv) -> float:
        """Predict the instructions of one warp of a block."""
        voxels = self.rows * self.window.volume
        column = self.window.z * self.window.x * (self.rows * self.window.y + self.taps_y - 1)
        vectors = self.taps_y * self.maps_pitch // VECTOR
        products = self.taps_y * voxels * self.maps
        issued, read = products + column + vectors, SCHEDULERS * (column + VECTOR * vectors)
        step = max(issued, read) + CONTENTION * min(issued, read)
        steps = conv.in_features * self.kernel.volume // self.taps_y
        groups = self.groups(conv.out_features)
        stages = conv.in_features * self.kernel.z // self.taps_z
        brought = 1 if self.one_input_stage else groups * stages
        store = STORE_INSTRUCTIONS + STORE_WAIT / self.out.x
        return (
            groups * (steps * step + store * self.rows * self.maps)
            + brought * BRING_INSTRUCTIONS * self.seen.volume / self.threads
        )


@cache
def _padding(pitch: int, lanes_x: int, step: int) -> int:
    """Return the fewest words after each row with which most lanes read different banks.

    Args:
        pitch: the words from row to row without padding, less whole rows of banks.
        lanes_x: lanes of a warp side by side along x.
        step: the rows from one lane to the next along y, less whole rows of banks.
    """

    def overlap(padding: int) -> int:
        banks = {
            (lane // lanes_x * step * (pitch + padding) + lane % lanes_x) % BANKS
            for lane in range(LANES)
        }
        return BANKS - len(banks)

    return min(range(BANKS), key=lambda padding: (overlap(padding), padding))


def tile_for(conv: Conv, window: Vec3, out: Shape5) -> Tile | None:
    """Return the fastest tile for a convolution that is pooled to ``out``.

    Returns:
        None if registers cannot hold the window, or shared memory the voxels that a block sees.
    """
    return _tile_for(conv, window, out.size)  # the batch changes the time of all tiles alike


@lru_cache(maxsize=2**16)
def _tile_for(conv: Conv, window: Vec3, size: Vec3) -> Tile | None:
    def instructions(choice: tuple[Tile, Vec3, float]) -> float:
        _, voxels, block = choice
        return size.ceil_div(voxels).volume * block

    tile, _, _ = min(_blocks(conv, window), key=instructions, default=(None, size, 0.0))
    return tile


@cache
def _blocks(conv: Conv, window: Vec3) -> list[tuple[Tile, Vec3, float]]:
    """Return each tile with the pooled voxels and the instructions of a block."""
    tiles = _tiles(conv.kernel, window, conv.in_features, conv.out_features)
    return [(tile, tile.out, tile.instructions_of_block(conv)) for tile in tiles]


@cache
def _tiles(kernel: Vec3, window: Vec3, in_features: int, out_features: int) -> tuple[Tile, ...]:
    """Return a tile for each division of a block among its warps and lanes."""
    taps_y = _largest_divisor(kernel.y, MOST_COLUMN_TAPS)
    by_registers = _registers(kernel, window, taps_y, out_features)
    if by_registers is None:
        return ()
    maps, rows = by_registers
    found = []
    for lanes_x in (LANES, LANES // 2):
        for warps in ARRANGEMENTS:
            for fewer in range(rows, rows // 2, -1):
                tile = _staged(
                    Tile(kernel, window, 1, taps_y, maps, fewer, lanes_x, warps, False), in_features
                )
                if tile.shared_bytes <= COMMON_BLOCK_SHARED:
                    found.append(tile)
    # Bringing the input once for all maps saves more time than any other choice.
    once = [tile for tile in found if tile.one_input_stage]
    return tuple(once or found)


def _registers(
    kernel: Vec3, window: Vec3, taps_y: int, out_features: int
) -> tuple[int, int] | None:
    """Return output maps and rows of a thread: of those that fit, the cheapest for a voxel."""
    fitting = {
        (maps, min(MOST_ROWS, MOST_SUMS // (window.volume * maps)))
        for maps in range(1, min(MOST_MAPS, out_features) + 1)
        if window.volume * maps <= MOST_SUMS
    }

    def cost(choice: tuple[int, int]) -> float:
        maps, rows = choice
        tile = Tile(kernel, window, 1, taps_y, maps, rows, LANES, ARRANGEMENTS[0], True)
        one_row_of_tiles = Shape5(1, out_features, ARRANGEMENTS[0].z, 1, LANES)
        conv = Conv("layer", 1, out_features, kernel, "identity")
        return tile.instructions(conv, one_row_of_tiles) / rows

    return min(fitting, key=cost, default=None)


def _staged(tile: Tile, in_features: int) -> Tile:
    """Return the tile with as many of the kernel's planes in a stage as shared memory holds."""
    for taps_z in divisors(tile.kernel.z):
        whole = taps_z == tile.kernel.z and in_features == 1
        staged = Tile(**{**vars(tile), "taps_z": taps_z, "one_input_stage": whole})
        if staged.shared_bytes <= SHARED_TOGETHER:
            return staged
    return tile


def _largest_divisor(number: int, most: int) -> int:
    return next(d for d in divisors(number) if d <= most)


def _whole_vectors(words: int) -> int:
    return -(-words // VECTOR) * VECTOR
