"""The division of a depthwise layer among blocks and threads of a GPU.

This is arithmetic on sizes, which needs no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from znni.core.shapes import ONE, Shape5, Vec3, round_up
from znni.machine.packed_arrays import VOXEL_BYTES
from znni.network.layers import Conv, ConvTranspose
from znni.primitives.gpu.common.hardware import BANKS, LANES
from znni.primitives.gpu.common.kernels import compiler_options, of_axes
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES

# Positions of a thread along x, each a float32; and threads of a block, at most.
ALONG, MOST_THREADS = 4, 128

# Maps of a position, and positions of a thread along x, if values are packed.
PACKED_MAPS, PACKED_ALONG = 8, 1

# Threads side by side along x, at most.
MOST_LANES_X = 32

# Words of a plane that a thread copies, at most: it keeps the place of each in a register.
MOST_COPIES = 40

# Steps along z that are on their way while one is computed.
AHEAD = 2

# Sums of a thread, at most, and numbers of a row that it sees. The rest of 255 registers holds
# rows of input, weights and addresses.
MOST_SUMS, MOST_SEEN = 144, 24

# The same if values are packed, by the parts of a number: each voxel of a column takes 8 registers,
# and more threads hide the time until both parts are there.
MOST_PACKED_SUMS = {1: 112, 2: 56}

# Blocks of a multiprocessor by the sums of a thread, which are registers.
FEW_SUMS, SOME_SUMS = 48, 80
BLOCKS = (4, 3, 2)

# Instructions of a thread that are not products. The first number is for a number that it copies,
# the second for one that it stores and moves on to the next plane.
COPY_INSTRUCTIONS = 4
STORE_INSTRUCTIONS = 4

# With fewer taps, a branch around the products of a plane takes longer than unneeded products.
TAPS_TO_SKIP = 64


@dataclass(frozen=True)
class Taps:
    """The taps of a depthwise layer, by phase of its output.

    Attributes:
        kernel: the extents of each phase's kernel.
        stride: the samples of the input from one position to the next.
        phases: the samples of the output at each position.
        parts: the parts of packed numbers, 8 maps together; 0 if numbers are float32 of one map.
    """

    kernel: Vec3
    stride: Vec3
    phases: Vec3
    parts: int = 0

    @classmethod
    def of(cls, layer: Conv | ConvTranspose, parts: int = 0) -> Taps:
        """Return the taps of a layer."""
        if isinstance(layer, Conv):
            return cls(layer.kernel, layer.stride, ONE, parts)
        return cls(layer.context.total + 1, ONE, layer.stride, parts)

    @property
    def maps(self) -> int:
        """The maps of a block."""
        return PACKED_MAPS if self.parts else 1

    @property
    def along(self) -> int:
        """The positions of a thread along x."""
        return PACKED_ALONG if self.parts else ALONG

    @property
    def position_sums(self) -> int:
        """The sums of a thread for one row of positions: those of each live plane and phase."""
        return self.live * self.along * self.maps * self.phases.x

    @property
    def live(self) -> int:
        """The planes of positions that see a plane of input."""
        return (self.kernel.z - 1) // self.stride.z + 1

    @property
    def rows(self) -> int:
        """The rows of positions of a thread: fewer if these see many numbers or make many."""
        most = MOST_PACKED_SUMS.get(self.parts, MOST_SUMS)
        return 2 if 4 * self.position_sums > most or self.stride.y > 1 else 4

    @property
    def sums(self) -> int:
        """The sums of a thread."""
        return self.rows * self.position_sums

    @property
    def seen(self) -> int:
        """The numbers of a row of input that a thread sees."""
        return (self.along - 1) * self.stride.x + self.kernel.x

    @property
    def fit(self) -> bool:
        """True if a thread has registers enough."""
        return self.sums <= MOST_SUMS and self.seen <= MOST_SEEN

    @property
    def weights(self) -> int:
        """The weights of a phase along z and y, with the zeros that fill vectors."""
        row = round_up(self.kernel.x * self.phases.x * self.maps, 4)
        return self.stride.z * self.kernel.y * self.live * row

    @property
    def adds_parts(self) -> bool:
        """True if the parts of a number are added before threads load it from shared memory.

        It pays if many taps see a number: not with strides or phases.
        """
        return self.parts == 2 and self.stride == self.phases == ONE

    @property
    def blocks(self) -> int:
        """The blocks that a multiprocessor has room for."""
        more = self.parts and self.phases.x > 1  # registers beside the sums
        some = FEW_SUMS if more else SOME_SUMS
        return BLOCKS[(self.sums > FEW_SUMS) + (self.sums > some)]

    @property
    def products(self) -> int:
        """The products of a thread for a plane of positions."""
        return self.stride.z * self.kernel.y * self.kernel.x * self.sums


@dataclass(frozen=True)
class Tile:
    """The work of a block at a time, known when its kernel is compiled.

    Attributes:
        taps: the taps of the layer.
        lanes_x: threads side by side along x.
        lanes_y: threads along y.
    """

    taps: Taps
    lanes_x: int
    lanes_y: int

    @property
    def threads(self) -> int:
        """The threads of a block, in whole warps."""
        return round_up(self.lanes_x * self.lanes_y, LANES)

    @property
    def seen_y(self) -> int:
        """The rows of input that a block sees."""
        return (self.lanes_y * self.taps.rows - 1) * self.taps.stride.y + self.taps.kernel.y

    @property
    def pitch(self) -> int:
        """Words, or packed voxels, from row to row in shared memory.

        A quarter of a warp reads a vector each at a time. If four lanes lie side by side, the other
        four read other banks.
        """
        taps = self.taps
        least = (self.lanes_x * taps.along - 1) * taps.stride.x + taps.kernel.x
        if taps.parts:
            return least
        pitch = round_up(least, 4)
        step = self.taps.rows * self.taps.stride.y
        while self.lanes_x == 4 and pitch * step % BANKS not in (BANKS // 2, 0):
            pitch += 4
        return pitch

    @property
    def plane_words(self) -> int:
        """The words, or packed voxels, of a plane of input in shared memory."""
        return self.seen_y * self.pitch

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block."""
        taps = self.taps
        planes = (AHEAD + 1) * taps.stride.z * self.plane_words
        word = VOXEL_BYTES * taps.parts if taps.parts else FLOAT_BYTES
        return FLOAT_BYTES * taps.weights + word * planes

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the compiler, which define the source's macros."""
        taps = self.taps
        sizes = {
            **of_axes("KERNEL", taps.kernel),
            **of_axes("STRIDE", taps.stride),
            **of_axes("PHASES", taps.phases),
            "LANES_X": self.lanes_x,
            "LANES_Y": self.lanes_y,
            "ALONG": taps.along,
            "ROWS": taps.rows,
            "AHEAD": AHEAD,
            "PITCH": self.pitch,
            "BLOCKS": taps.blocks,
            "ADDS_PARTS": int(taps.adds_parts),
            "SKIPS": int(taps.kernel.volume > TAPS_TO_SKIP),
            "UNROLLED": taps.kernel.y if taps.kernel.volume <= TAPS_TO_SKIP else 1,
        }
        return compiler_options(sizes)

    def tiles(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the tiles along y and x that cover so many rows and columns of positions."""
        return ceil(rows / (self.lanes_y * self.taps.rows)), ceil(
            columns / (self.lanes_x * self.taps.along)
        )

    @property
    def instructions(self) -> float:
        """The instructions of a block for a plane of positions."""
        words = self.plane_words * max(1, self.taps.parts)
        copies = COPY_INSTRUCTIONS * self.taps.stride.z * words
        stores = STORE_INSTRUCTIONS * self.taps.sums
        return copies + self.threads * (self.taps.products + stores)


@dataclass(frozen=True)
class Division:
    """The division of a layer's output among blocks.

    Attributes:
        tile: the tile of rows and columns.
        tiles: the blocks along each axis.
        each: the planes of positions of a block.
    """

    tile: Tile
    tiles: Vec3
    each: int

    def blocks(self, out: Shape5) -> int:
        """Return the blocks of all maps, phases and images."""
        return out.n * -(-out.f // self.tile.taps.maps) * self.parts

    @property
    def parts(self) -> int:
        """The blocks of a map, or of maps that lie together."""
        phases = self.tile.taps.phases
        return phases.z * phases.y * self.tiles.volume

    def instructions(self, out: Shape5) -> float:
        """Return the instructions of all blocks."""
        steps = self.each + self.tile.taps.live - 1
        return self.blocks(out) * steps * self.tile.instructions


@lru_cache(maxsize=1024)
def division(taps: Taps, out: Shape5, processors: int, shared: int) -> Division | None:
    """Return the division that takes the fewest instructions.

    Args:
        taps: the taps of the layer.
        out: the shape of its output.
        processors: the multiprocessors of the GPU.
        shared: the shared memory that a block may take.

    Returns:
        The division; None if the layer needs too many registers or too much shared memory.
    """
    if not taps.fit:
        return None
    planes, rows, columns = out.size.ceil_div(taps.phases)
    found = [
        tile
        for lanes_x in range(1, min(MOST_LANES_X, ceil(columns / taps.along)) + 1)
        for lanes_y in range(1, min(MOST_THREADS // lanes_x, ceil(rows / taps.rows)) + 1)
        if (tile := Tile(taps, lanes_x, lanes_y)).shared_bytes <= shared
        and tile.plane_words <= MOST_COPIES * tile.threads
    ]
    if not found:
        return None

    def cost(tile: Tile) -> float:
        y, x = tile.tiles(rows, columns)
        return y * x * tile.instructions

    tile = min(found, key=cost)
    y, x = tile.tiles(rows, columns)
    whole = Division(tile, Vec3(1, y, x), planes).blocks(out)
    at_once = processors * taps.blocks * MOST_THREADS // tile.threads

    def steps(each: int) -> float:
        """Return the steps of the busiest places, and those of all places on average."""
        turns = whole * ceil(planes / each) / at_once
        return (ceil(turns) + turns) * (each + taps.live - 1)

    each = min({ceil(planes / parts) for parts in range(1, min(planes, 32) + 1)}, key=steps)
    return Division(tile, Vec3(ceil(planes / each), y, x), each)
