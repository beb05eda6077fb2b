"""The strips of an output that blocks of a direct convolution on tensor cores compute soonest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from znni.core.shapes import ONE, Vec3
from znni.network.layers import Conv
from znni.primitives.gpu.common.hardware import Chip
from znni.primitives.gpu.common.number_formats import TensorFormat
from znni.primitives.gpu.direct_tensor.fitting import SUBTILES, blocks_for
from znni.primitives.gpu.direct_tensor.geometry import ThreadBlock

# If an output has fewer blocks than this for each multiprocessor, smaller blocks are tried, too.
# They are more blocks with fewer products each, so that fewer multiprocessors wait for the last
# ones. Such a block has a share of the output maps, at least 8.
FEW_BLOCKS = 8
SMALL_SUBTILES = (Vec3(2, 1, 1), ONE)
SMALL_COLUMNS = (80, 72, 64, 48, 40, 24, 16, 8)

# A block that keeps the image for all passes takes at most this share of the time, by an estimate.
KEEPING_SHARE = 0.7


class Strip(NamedTuple):
    """Part of an output along x, and the block that computes it."""

    block: ThreadBlock
    first: int
    last: int

    def tiles(self, out: Vec3) -> Vec3:
        """Return the blocks along each axis that cover its part of an output."""
        return self.block.tiles(out._replace(x=self.last - self.first))

    def cycles(
        self, out: Vec3, *, packed: bool = False, adds: bool = False, sums: bool = False
    ) -> float:
        """Return a multiprocessor's cycles for its part of an output, as ``ThreadBlock.cycles``."""
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


def _divisions(blocks: tuple[ThreadBlock, ...], out: Vec3) -> Iterator[tuple[Strip, ...]]:
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
