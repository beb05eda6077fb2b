"""The blocks of a direct convolution on tensor cores that fit shared memory and registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from znni.core.shapes import ONE, Vec3
from znni.network.layers import Conv
from znni.primitives.gpu.common.division import divisors
from znni.primitives.gpu.common.hardware import Chip
from znni.primitives.gpu.common.number_formats import TensorFormat
from znni.primitives.gpu.direct_tensor.geometry import (
    GROUP,
    IN_MAPS,
    MOST_SUMS,
    STACKING_SUBTILES,
    ThreadBlock,
)

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

# If sums of pairs must be exact, tensor cores sum at most so many products, and a block adds up the
# sums of more. If it then has more columns than the second number, its registers have room for two
# products.
MOST_EXACT_SUMS, MOST_ADDED_UP = 64, 40
TWO_PRODUCTS = (Vec3(2, 1, 1), Vec3(1, 2, 1), Vec3(1, 1, 2))

# Places in shared memory for chunks of the image. A stage of weights is large enough to be worth a
# barrier.
IMAGE_PLACES = 2, 1
MOST_STAGE_BYTES = 24 * 1024
MOST_STACKING_STAGE_BYTES = 28 * 1024

# Images of an output for which shared memory may have two places, so that warpgroups take turns.
MOST_IMAGES_OF_TURNS = 2

# With so few taps, copying the image again for a pass takes longer than the products.
MOST_KEEPING_TAPS = 1


def blocks_for(
    conv: Conv,
    numbers: TensorFormat,
    chip: Chip,
    subtiles: tuple[Vec3, ...] = SUBTILES,
    most_columns: int = MOST_COLUMNS,
    *,
    exact: bool = False,
    keeps_images: bool = False,
) -> tuple[ThreadBlock, ...]:
    """Return a block of each subtile that shared memory and registers have room for.

    Args:
        conv: the convolution.
        numbers: the format of image and weights.
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
) -> tuple[ThreadBlock, ...]:
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
        ThreadBlock(
            chip, numbers, kernel, chunks, columns, passes, subtile, kernel, IMAGE_PLACES[0], step,
            adds_up,
        )
        for subtile in dict.fromkeys((*STACKING_SUBTILES, *subtiles))
    )  # fmt: skip
    kept = (block for block in whole if block.stacks_taps or block.subtile in subtiles)
    found = (next(_fitting(block, keeps_images), None) for block in kept)
    return tuple(block for block in found if block is not None)


def _fitting(block: ThreadBlock, keeps_images: bool) -> Iterator[ThreadBlock]:
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


def _stages(block: ThreadBlock) -> Iterator[Vec3]:
    """Yield the extents of stages that divide the kernel of a block, the largest first.

    The block is given with its whole kernel as a stage. If a product has all taps along z, stages
    are rows, or parts of a row, of all planes. Otherwise they are whole planes, rows, or parts of a
    row. With a stride, a stage is a row.
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
