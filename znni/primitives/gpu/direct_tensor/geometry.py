"""A block of a direct convolution on tensor cores: its sizes, its memory and its cycles.

This is arithmetic on sizes, which needs no device. ``fitting.py`` chooses blocks by it, and
declines kernels for which none fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from znni.core.shapes import ONE, Vec3
from znni.primitives.gpu.common.division import even_share
from znni.primitives.gpu.common.hardware import KIB, LANES, SECTOR_FLOATS, WARPGROUP_THREADS, Chip
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR, TensorFormat

# Sizes of a warpgroup's product: input maps, and voxels along y and x.
IN_MAPS = 16
ROWS = 8
PRODUCT_VOXELS = ROWS * ROWS

# Maps of a voxel that lie together, and their bytes.
GROUP = 8
VOXEL_BYTES = 16

# Warpgroups that sum, one after the other along z. For products of warpgroups, one more copies
# image and weights to shared memory. For products of warps, those that sum also copy.
WARPGROUPS = 2

# Products of 16 maps that tensor cores may sum. They cut off the numbers that they add, with an
# error of 2.3e-8 for each product. Layers with more products are computed in several passes over
# some input maps each, whose sums are added in float32. Or a block adds up the sums of each chunk
# in float32.
MOST_SUMS = {FLOAT16: 16384, FLOAT16_PAIR: 512}

# With few columns, reading the left side of a product takes longer than the product. So a block of
# so few columns multiplies a plane of voxels with all taps along z in one product. The sums of each
# tap stay apart in the registers of a thread, of which they may have so many. A stage has all taps
# along z.
STACKING_SUBTILES = Vec3(6, 1, 1), Vec3(4, 1, 1), Vec3(3, 1, 1), Vec3(2, 1, 1)
MOST_STACKING_COLUMNS = 32
MOST_SUM_REGISTERS = 160

# Shared memory of a block that barriers may take. The rest holds the image of some chunks of maps,
# and as many stages of weights as have room.
BARRIER_BYTES = KIB
LEAST_STAGES, MOST_STAGES = 2, 8
MOST_PLACES = 62  # of image and weights, each with two barriers of 8 bytes

# Cycles of an H200's multiprocessor, measured. A product takes cycles for each of its columns, or
# for its two sides, which it reads from shared memory. It sustains a share of that rate. Writing a
# part of a sector takes more cycles than writing all of it, because the sector is read first.
COLUMN_CYCLES = 0.5
SIDE_CYCLES, SIDE_COLUMN_CYCLES = 16, 0.25
SUSTAINED = 0.8
SECTOR_CYCLES, PART_CYCLES = 4.2, 6.8

# Operations of a product for a column. If shared memory has one place for chunks of the image, no
# products run while a chunk is copied: cycles for each of its bytes, and until the first of them.
COLUMN_FLOPS = 2 * IN_MAPS * PRODUCT_VOXELS
BYTE_CYCLES, FIRST_CYCLES = 1 / 32, 1000

# Cycles of a multiprocessor from one block and pass to the next, beside all others. A layer of 32
# to 16 maps took 1900 for blocks of 128 voxels and 8 maps, of which other counts explain 430.
PLACE_CYCLES = 1000

# Cycles of a multiprocessor for a byte of weights, if all multiprocessors copy them from the
# second-level cache: an estimate.
WEIGHT_BYTE_CYCLES = 1 / 20


@dataclass(frozen=True)
class ThreadBlock:
    """The work of a block at a time, all known when its kernel is compiled.

    Attributes:
        chip: the chip that computes it.
        numbers: the format of image and weights.
        kernel: extents of the kernel.
        chunks: chunks of 16 input maps.
        columns: output maps of a pass, a multiple of 8.
        passes: passes until all output maps are computed.
        subtile: products that a warpgroup sums, along z, y and x.
        taps: extents of a stage: the taps whose weights are copied together.
        image_places: places in shared memory for a chunk of the image, or a shift of it.
        step: the input voxels from one output voxel to the next.
        adds_up: whether the sums of each chunk are added to those before it in float32.
        keeps_image: whether the image that the block sees stays in shared memory for all passes.
    """

    chip: Chip
    numbers: TensorFormat
    kernel: Vec3
    chunks: int
    columns: int
    passes: int
    subtile: Vec3
    taps: Vec3
    image_places: int
    step: Vec3 = ONE
    adds_up: bool = False
    keeps_image: bool = False

    @property
    def threads(self) -> int:
        """Threads."""
        return WARPGROUP_THREADS * (WARPGROUPS + int(self.chip.has_warpgroups))

    @cached_property
    def most_chunks(self) -> int:
        """Chunks that may be summed by tensor cores."""
        return MOST_SUMS[self.numbers] // (self.kernel.volume * self.numbers.terms)

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """Chunks of each pass over input maps, whose sums are added in float32."""
        share = self.chunks if self.adds_up else even_share(self.chunks, self.most_chunks)
        return tuple(min(share, self.chunks - i) for i in range(0, self.chunks, share))

    @cached_property
    def out(self) -> Vec3:
        """Output voxels."""
        return self.subtile * Vec3(WARPGROUPS, ROWS, ROWS)

    @property
    def seen(self) -> Vec3:
        """Input voxels at a shift: every ``step``-th row, with the voxels of all shifts along x."""
        found = self.out + (self.kernel - 1) // self.step
        return found._replace(x=found.x * self.shifts.x)

    @property
    def shifts(self) -> Vec3:
        """The first voxels of which each sees other taps."""
        return self.step.minimum(self.kernel)

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """The rows of taps (z, y), shift after shift."""
        return tuple(
            (z, y)
            for shift_z in range(self.shifts.z)
            for shift_y in range(self.shifts.y)
            for z in range(shift_z, self.kernel.z, self.step.z)
            for y in range(shift_y, self.kernel.y, self.step.y)
        )

    @cached_property
    def image_bytes(self) -> int:
        """Bytes of the input voxels of 16 maps."""
        return self.seen.volume * self.chunk_voxel_bytes

    @property
    def chunk_voxel_bytes(self) -> int:
        """Bytes of a voxel of 16 maps."""
        return IN_MAPS // GROUP * self.numbers.parts * VOXEL_BYTES

    @cached_property
    def stage_bytes(self) -> int:
        """Bytes of the weights of a stage."""
        return self.taps.volume * self.numbers.parts * 2 * self.columns * VOXEL_BYTES

    @property
    def all_stages(self) -> int:
        """Stages of a pass over all input maps."""
        return self.chunks * self.chunk_stages

    @property
    def chunk_stages(self) -> int:
        """Stages of a chunk."""
        return self.kernel.volume // self.taps.volume

    @cached_property
    def stages(self) -> int:
        """Stages that shared memory has places for: those of all passes, if there is room."""
        room = min(self.shared_room // self.stage_bytes, MOST_PLACES - self.image_places)
        if (self.is_one_pass or self.keeps_image) and self._stages_of_passes <= room:
            return self._stages_of_passes
        return min(room, MOST_STAGES, min(self.sums) * self.chunk_stages + 1)

    @property
    def _stages_of_passes(self) -> int:
        return self.passes * self.all_stages

    @property
    def is_one_pass(self) -> bool:
        """True if a block sums all input maps for all output maps."""
        return self.passes == 1 and len(self.sums) == 1

    @property
    def keeps_weights(self) -> bool:
        """True if weights are brought once for all blocks that follow each other."""
        known = self.is_one_pass or self.keeps_image
        return known and self.stages == self._stages_of_passes

    @property
    def takes_turns(self) -> bool:
        """True if one warpgroup makes products while the other one stores what it has summed.

        It may be an output ahead, so shared memory has all weights, and images of two outputs.
        """
        room = self.image_places >= 2 * self.images and not self.keeps_image
        return self.chip.has_warpgroups and self.keeps_weights and room

    @property
    def shared_room(self) -> int:
        """Bytes of shared memory that the image leaves to weights."""
        room = self.chip.block_shared_bytes - BARRIER_BYTES
        return room - self.image_places * self.image_bytes

    @property
    def fits(self) -> bool:
        """True if shared memory has room for the block."""
        return self.keeps_weights or self.stages >= LEAST_STAGES

    @property
    def shared_bytes(self) -> int:
        """Bytes of image and weights in shared memory."""
        return self.image_places * self.image_bytes + self.stages * self.stage_bytes

    @cached_property
    def products(self) -> int:
        """Products of a pass, each of 64 voxels, 16 input maps and all columns."""
        voxels = WARPGROUPS * self.subtile.volume
        return self.chunks * self.kernel.volume * voxels * self.numbers.terms

    @cached_property
    def stacks_taps(self) -> bool:
        """True if one product multiplies a plane of voxels with all taps along z."""
        several = self.kernel.z > 1 and self.taps.z == self.kernel.z and self.step == ONE
        few = self.columns <= MOST_STACKING_COLUMNS and self.subtile in STACKING_SUBTILES
        sums = self.kernel.z + int(self.adds_up)
        room = self.subtile.z * self.columns // 2 * sums <= MOST_SUM_REGISTERS
        return self.chip.has_warpgroups and several and few and room

    @cached_property
    def product_cycles(self) -> float:
        """Cycles of a multiprocessor for one product: of tensor cores, or of its two sides.

        Warps read the right side once for all of a warpgroup's products. If a product has several
        taps, each of these counts as one.
        """
        if self.chip.has_warpgroups:
            taps = self._stacked_taps if self.stacks_taps else [1]
            columns = [self.columns * count for count in taps]
            cycles = (
                max(COLUMN_CYCLES * it, SIDE_CYCLES + SIDE_COLUMN_CYCLES * it) for it in columns
            )
            return sum(cycles) / sum(taps)
        sides = SIDE_CYCLES + self.columns / self.subtile.volume
        return max(COLUMN_FLOPS / self.chip.tensor_flops * self.columns, sides)

    @property
    def _stacked_taps(self) -> list[int]:
        """The taps along z that each plane of voxels is multiplied with, plane after plane."""
        tiles, taps = self.subtile.z, self.kernel.z
        planes = range(tiles + taps - 1)
        return [min(plane, taps - 1) - max(0, plane - tiles + 1) + 1 for plane in planes]

    @property
    def waiting_cycles(self) -> float:
        """Cycles without products, while the image is copied, if its chunks have one place."""
        if self.image_places > 1:
            return 0.0
        return self.images * FIRST_CYCLES + self._image_cycles

    @property
    def _image_cycles(self) -> float:
        """Cycles for the bytes of all chunks of the image."""
        return BYTE_CYCLES * self.images * self.image_bytes

    @property
    def images(self) -> int:
        """Chunks of the image, each as often as there are shifts."""
        return self.chunks * self.shifts.z * self.shifts.y

    def tiles(self, out: Vec3) -> Vec3:
        """Return the blocks along each axis that cover an output."""
        return out.ceil_div(self.out)

    def cycles(
        self, out: Vec3, row: int, *, packed: bool = False, adds: bool = False, sums: bool = False
    ) -> float:
        """Return a multiprocessor's cycles for an output: products and stores run side by side.

        Args:
            out: extents of the output.
            row: voxels from row to row, which say how rows lie in sectors.
            packed: whether the output is packed. Then all its sectors are whole, and half as many.
            adds: whether a packed output is added to what its sectors hold.
            sums: whether each map of a packed output is added up.
        """
        block = self._packed_cycles[adds, sums] if packed else self.cycles_of_one(row)
        return self.passes * self.tiles(out).volume * block

    def cycles_of_one(self, row: int) -> float:
        """Return the cycles of one block and pass, whose output has rows of so many voxels."""
        return self._aligned_cycles if row % SECTOR_FLOATS == 0 else self._unaligned_cycles

    @cached_property
    def _aligned_cycles(self) -> float:
        """Cycles of one block and pass if its rows begin where sectors do."""
        return self._cycles(partial=0)

    @cached_property
    def _unaligned_cycles(self) -> float:
        """Cycles of one block and pass if both ends of its rows are parts of sectors."""
        return self._cycles(partial=2)

    @cached_property
    def _packed_cycles(self) -> dict[tuple[bool, bool], float]:
        """Cycles of one block and pass if its output is packed.

        The key says whether its sectors are read first, and whether its maps are added up. Each
        warp then has half a sector for each of them.
        """
        sectors = self.out.volume * self.columns * self.numbers.parts / (2 * SECTOR_FLOATS)
        of_sums = WARPGROUPS * WARPGROUP_THREADS / LANES * self.columns / 2
        return {
            (adds, sums): self._cycles_with(
                sectors * (PART_CYCLES if adds else SECTOR_CYCLES) + sums * of_sums * PART_CYCLES
            )
            for adds in (False, True)
            for sums in (False, True)
        }

    def _cycles(self, partial: int) -> float:
        """Return the cycles of one block and pass whose rows have so many parts of sectors."""
        lines = self.out.volume // self.out_together * self.columns
        whole = self.out_together // SECTOR_FLOATS
        return self._cycles_with(
            lines * ((whole - partial // 2) * SECTOR_CYCLES + partial * PART_CYCLES)
        )

    def _cycles_with(self, stores: float) -> float:
        """Return the cycles of one block and pass, given those of its stores."""
        products = self.products * self.product_cycles / SUSTAINED + self.waiting_cycles
        brought = self._image_cycles / (self.passes if self.keeps_image else 1)
        if not self.keeps_weights:
            brought += WEIGHT_BYTE_CYCLES * self.all_stages * self.stage_bytes
        between = PLACE_CYCLES if self.chip.has_warpgroups else 0.0
        return between + max(products, len(self.sums) * stores, brought)

    @cached_property
    def out_together(self) -> int:
        """Voxels of a row that are stored together."""
        return ROWS * self.subtile.x
