"""The division of a direct convolution on tensor cores among blocks, and their memory.

This is arithmetic on sizes, which needs no device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from znni.core.shapes import Vec3
from znni.network.layers import Conv
from znni.primitives.gpu.common.division import divisors, even_share
from znni.primitives.gpu.common.hardware import KIB, LANES, SECTOR_FLOATS, WARPGROUP_THREADS, Chip
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR, TensorFormat

ONE = Vec3(1, 1, 1)

# Sizes of a warpgroup's product: input maps, and voxels along y and x.
IN_MAPS = 16
ROWS = 8
PRODUCT_VOXELS = ROWS * ROWS

# Maps of a voxel that lie together, and their bytes.
GROUP = 8
VOXEL_BYTES = 16

# A warpgroup sums four products, of at most so many maps, in 160 registers of a thread. The
# products may lie along z, y and x in these ways. The first of those that take the least time is
# used.
SUBTILES = (
    Vec3(4, 1, 1),
    Vec3(2, 2, 1),
    Vec3(2, 1, 2),
    Vec3(1, 2, 2),
    Vec3(1, 4, 1),
    Vec3(1, 1, 4),
)
MOST_COLUMNS = 80

# If an output has fewer blocks than this for each multiprocessor, smaller blocks are tried, too.
# They are more blocks with fewer products each, so that fewer multiprocessors wait for the last
# ones. Such a block has a share of the output maps, at least 8.
FEW_BLOCKS = 8
SMALL_SUBTILES = (Vec3(2, 1, 1), Vec3(1, 1, 1))
SMALL_COLUMNS = (80, 72, 64, 48, 40, 24, 16, 8)

# If sums of pairs must be exact, tensor cores sum at most so many products, and a block adds up the
# sums of more. If it then has more columns than the second number, its registers have room for two
# products.
MOST_EXACT_SUMS, MOST_ADDED_UP = 64, 40
TWO_PRODUCTS = (Vec3(2, 1, 1), Vec3(1, 2, 1), Vec3(1, 1, 2))

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
MOST_STACKING_STAGE_BYTES = 28 * 1024

# Images of an output for which shared memory may have two places, so that warpgroups take turns.
MOST_IMAGES_OF_TURNS = 2

# Shared memory of a block that barriers may take. The rest holds the image of one or two chunks of
# maps, and as many stages of weights as have room. A stage is large enough to be worth a barrier.
BARRIER_BYTES = KIB
IMAGE_PLACES = 2, 1
MOST_STAGE_BYTES = 24 * 1024
LEAST_STAGES, MOST_STAGES = 2, 8
MOST_PLACES = 62  # of image and weights, each with two barriers of 8 bytes

# With so few taps, copying the image again for a pass takes longer than the products. A block that
# keeps the image then takes at most this share of the time, by an estimate.
MOST_KEEPING_TAPS = 1
KEEPING_SHARE = 0.7

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
class Block:
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
        self,
        out: Vec3,
        row: int,
        *,
        packed: bool = False,
        adds: bool = False,
        sums: bool = False,
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


def blocks_for(
    conv: Conv,
    numbers: TensorFormat,
    chip: Chip,
    subtiles: tuple[Vec3, ...] = SUBTILES,
    most_columns: int = MOST_COLUMNS,
    *,
    exact: bool = False,
    keeps_images: bool = False,
) -> tuple[Block, ...]:
    """Return a block of each subtile that shared memory and registers have room for.

    Args:
        conv: the convolution.
        numbers: the format of image and weights.
        chip: the chip.
        subtiles: the subtiles.
        most_columns: output maps of a pass, at most.
        exact: whether all digits of pairs count, so that tensor cores cut off none of them.
        keeps_images: whether blocks keep the image of a place for all passes. There is no other
            block then, and none for kernels for which that gains nothing.
    """
    maps = conv.in_features, conv.out_features
    return _blocks(
        conv.kernel, conv.stride, maps, numbers, chip, subtiles, most_columns, exact, keeps_images
    )


@lru_cache(maxsize=1024)  # a search asks for the same blocks of thousands of outputs
def _blocks(
    kernel: Vec3,
    step: Vec3,
    maps: tuple[int, int],
    numbers: TensorFormat,
    chip: Chip,
    subtiles: tuple[Vec3, ...],
    most_columns: int,
    exact: bool,
    keeps_images: bool,
) -> tuple[Block, ...]:
    """Return the blocks of a kernel between numbers of input and output maps."""
    if kernel.volume * numbers.terms > MOST_SUMS[numbers]:
        return ()
    given, wanted = maps
    chunks = -(-given // IN_MAPS)
    passes = -(-wanted // most_columns)
    columns = -(-wanted // (GROUP * passes)) * GROUP
    adds_up = exact and chunks * kernel.volume * numbers.terms > MOST_EXACT_SUMS
    if adds_up and columns > MOST_ADDED_UP:
        fewer = (it for it in subtiles if it.volume <= TWO_PRODUCTS[0].volume)
        subtiles = tuple(dict.fromkeys((*TWO_PRODUCTS, *fewer)))
    whole = (
        Block(
            chip, numbers, kernel, chunks, columns, passes, subtile, kernel, IMAGE_PLACES[0], step,
            adds_up,
        )
        for subtile in dict.fromkeys((*STACKING_SUBTILES, *subtiles))
    )  # fmt: skip
    kept = (block for block in whole if block.stacks_taps or block.subtile in subtiles)
    found = (next(_fitting(block, keeps_images), None) for block in kept)
    return tuple(block for block in found if block is not None)


def _fitting(block: Block, keeps_images: bool) -> Iterator[Block]:
    """Yield blocks that fit, the one with most places for the image and largest stages first.

    With wgmma, the threads that copy the image work ahead, and need two places, or more if
    warpgroups take turns. If the image is kept, they need places for all input maps, and twice as
    many to work ahead. With products of warps, pairs leave no registers for stages of several rows.
    """
    most_rows = 1 if block.numbers.parts > 1 and not block.chip.has_warpgroups else block.kernel.y
    places: tuple[int, ...] = IMAGE_PLACES
    if block.chip.has_warpgroups:
        turns = 2 * block.images if block.images <= MOST_IMAGES_OF_TURNS else IMAGE_PLACES[0]
        places = tuple(dict.fromkeys((turns, IMAGE_PLACES[0])))
    if keeps_images:
        gains = block.kernel.volume <= MOST_KEEPING_TAPS and block.passes > 1
        known = block.chip.has_warpgroups and len(block.sums) == 1
        places = (2 * block.images, block.images) if gains and known else ()
    for image_places in places:
        for taps in _stages(block):
            found = replace(block, taps=taps, image_places=image_places, keeps_image=keeps_images)
            most_bytes = MOST_STACKING_STAGE_BYTES if found.stacks_taps else MOST_STAGE_BYTES
            used = image_places <= IMAGE_PLACES[0] or keeps_images or found.takes_turns
            if taps.y <= most_rows and found.stage_bytes <= most_bytes and found.fits and used:
                yield found


class Strip(NamedTuple):
    """Part of an output along x, and the block that computes it."""

    block: Block
    first: int
    last: int

    def tiles(self, out: Vec3) -> Vec3:
        """Return the blocks along each axis that cover its part of an output."""
        return self.block.tiles(out._replace(x=self.last - self.first))

    def cycles(
        self, out: Vec3, *, packed: bool = False, adds: bool = False, sums: bool = False
    ) -> float:
        """Return a multiprocessor's cycles for its part of an output, as ``Block.cycles``."""
        part = out._replace(x=self.last - self.first)
        return self.block.cycles(part, out.x, packed=packed, adds=adds, sums=sums)

    def blocks(self, out: Vec3) -> int:
        """Return the number of blocks of its part of an output, each of one pass or of all."""
        return (1 if self.block.keeps_image else self.block.passes) * self.tiles(out).volume

    def to_the_end(self, out: Vec3, items: int, processors: int) -> tuple[float, float]:
        """Return the cycles from beginning to end, if a GPU computes nothing else, and ``cycles``.

        A search asks this of a hundred thousand strips, so it is plain arithmetic.

        Args:
            out: extents of an output.
            items: outputs that are computed together.
            processors: multiprocessors of the GPU, some of which may have nothing to do.
        """
        block = self.block
        z, y, x = block.out
        tiles = -(-out.z // z) * -(-out.y // y) * -(-(self.last - self.first) // x)
        cycles = block.passes * tiles * block.cycles_of_one(out.x)
        blocks = items * (1 if block.keeps_image else block.passes) * tiles
        return cycles * items / blocks * -(-blocks // processors), cycles


def small_strip(
    conv: Conv,
    numbers: TensorFormat,
    out: Vec3,
    chip: Chip,
    items: int,
    processors: int,
    *,
    exact: bool = False,
) -> Strip:
    """Return the strip that a GPU computes soonest if its blocks are few."""
    subtiles = SUBTILES + SMALL_SUBTILES
    strips = [
        Strip(block, 0, out.x)
        for columns in SMALL_COLUMNS
        for block in blocks_for(conv, numbers, chip, subtiles, columns, exact=exact)
    ]
    return min(strips, key=lambda strip: strip.to_the_end(out, items, processors))


@lru_cache(maxsize=2**12)
def strips_for(
    conv: Conv,
    numbers: TensorFormat,
    out: Vec3,
    chip: Chip,
    items: int = 1,
    processors: int = 1,
    *,
    exact: bool = False,
) -> tuple[Strip, ...]:
    """Return the strips that end soonest: one, or one of wide blocks and a rest.

    If multiprocessors have few blocks each, the one strip may be of smaller blocks.

    Args:
        conv: the convolution.
        numbers: the format of image and weights.
        out: extents of an output.
        chip: the chip.
        items: outputs that are computed together.
        processors: multiprocessors of the GPU.
        exact: whether all digits of pairs count, so that tensor cores cut off none of them.

    Returns:
        No strip if shared memory has no room for the kernel, or if sums would not keep the
        format's accuracy.
    """

    def to_the_end(strips: tuple[Strip, ...]) -> tuple[float, float]:
        ends, cycles = zip(*(it.to_the_end(out, items, processors) for it in strips), strict=True)
        return sum(ends), sum(cycles)

    def soonest(*, keeps_images: bool) -> tuple[Strip, ...]:
        blocks = blocks_for(conv, numbers, chip, exact=exact, keeps_images=keeps_images)
        return min(_divisions(blocks, out), key=to_the_end, default=())

    best = soonest(keeps_images=False)
    if best and items * sum(strip.blocks(out) for strip in best) < FEW_BLOCKS * (processors - 1):
        small = small_strip(conv, numbers, out, chip, items, processors, exact=exact)
        best = min(best, (small,), key=to_the_end)
    keeping = soonest(keeps_images=True)
    if keeping and KEEPING_SHARE * to_the_end(keeping)[0] <= to_the_end(best)[0]:
        return keeping
    return best


def _divisions(blocks: tuple[Block, ...], out: Vec3) -> Iterator[tuple[Strip, ...]]:
    """Yield strips that cover an output: one of each block, or one of wide blocks and a rest."""
    for block in blocks:
        yield (Strip(block, 0, out.x),)
        wide = out.x // block.out.x * block.out.x
        if 0 < wide < out.x:
            alike = (it for it in blocks if it.stacks_taps == block.stacks_taps)
            rest = min(
                (Strip(other, wide, out.x) for other in alike), key=lambda it: it.cycles(out)
            )
            yield Strip(block, 0, wide), rest


def _stages(block: Block) -> Iterator[Vec3]:
    """Yield the extents of stages that divide the kernel of a block, the largest first.

    If the block, given with its whole kernel as a stage, has all taps along z in a product, these
    are rows, or parts of a row, of all planes. Others are whole planes, rows, or parts of a row.
    With a stride, a stage is a row.
    """
    kernel = block.kernel
    if block.step != ONE:
        yield Vec3(1, 1, kernel.x)
        return
    if block.stacks_taps:
        for rows in divisors(kernel.y):
            yield kernel._replace(y=rows)
        for taps in divisors(kernel.x):
            yield Vec3(kernel.z, 1, taps)
    for planes in divisors(kernel.z):
        yield kernel._replace(z=planes)
    for rows in divisors(kernel.y):
        yield Vec3(1, rows, kernel.x)
    for taps in divisors(kernel.x):
        yield Vec3(1, 1, taps)
