"""The windows that blocks of output need: their voxels, and how often the layers run for them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from znni.core.shapes import Vec3
from znni.core.spline_weights import Places

if TYPE_CHECKING:
    from znni.network.window import Window


@lru_cache(maxsize=4096)
def voxels_around_block(window: Window, block: Vec3) -> Vec3:
    """Return the most voxels per axis of the windows that a block needs."""
    assert window.volume is not None
    most = []
    for starts, size, volume, edge in zip(
        window.starts, window.size, window.volume, block, strict=True
    ):
        # The first window of a block reaches farthest if the block begins with its last voxel.
        first = np.array(starts)
        block_starts = np.minimum(first + size - 1, max(0, volume - edge)).clip(0)
        first_of_block = first[np.searchsorted(first, block_starts - size, side="right")]
        last = first[np.searchsorted(first, block_starts + edge, side="left") - 1]
        most.append(int((last + size - first_of_block).max()))
    return Vec3(*most)


@lru_cache(maxsize=4096)
def runs_of_block(window: Window, block: Vec3, in_order: bool, together: int) -> float:
    """Return how often the layers run for a block of output, on average.

    Args:
        block: the extents of the block.
        in_order: whether a window along x counts for the first of its blocks alone.
        together: the windows that the layers compute at once.
    """
    z, y = (_in_blocks(window, block, axis, window.starts[axis]) for axis in (0, 1))
    columns = len(window.flips) * z[:, None] * y
    runs = 0.0
    starts, repeats = np.unique(window.starts[2], return_counts=True)
    for times in set(repeats.tolist()):  # windows that begin at the same x share groups
        x = _in_blocks(window, block, 2, starts[repeats == times], once=in_order)
        runs += (-(-times * columns // together)).mean() * x.mean()
    return float(runs)


@lru_cache(maxsize=4096)
def last_without_windows(window: Window, extent: int) -> int:
    """Return how many of the last blocks along x find all their windows computed.

    Args:
        window: the windows. Each counts for the first of its blocks along x alone.
        extent: the extent of a block along x.
    """
    block = Vec3(1, 1, extent)
    begun = _in_blocks(window, block, 2, window.starts[2], once=True)
    return len(begun) - 1 - int(np.flatnonzero(begun).max(initial=0))


def _in_blocks(
    window: Window, block: Vec3, axis: int, starts: ArrayLike, *, once: bool = False
) -> NDArray[np.int64]:
    """Return how many of some windows each block along an axis has.

    Args:
        block: the extents of a block.
        axis: the axis, 0 for z.
        starts: where the windows begin along it.
        once: whether a window counts for the first of its blocks alone.
    """
    first, covered = np.array(starts), window.covered
    lows, highs = _blocks(window, block[axis], axis)
    begun = np.searchsorted(highs, np.maximum(first, covered.start[axis]), side="right")
    ends = np.minimum(first + window.size[axis], covered.stop[axis])
    ended = np.searchsorted(lows, ends, side="left") - 1
    needed = begun <= ended  # resampled output may need no voxel of a window
    begun, ended = begun[needed], ended[needed]
    changes = np.zeros(len(lows) + 1, np.int64)
    np.add.at(changes, begun, 1)
    np.add.at(changes, (begun if once else ended) + 1, -1)
    return changes.cumsum()[:-1]


def tail_of_block(window: Window, block: Vec3) -> int:
    """Return the most voxels along x whose sums a block keeps for the next one.

    Args:
        block: the extents of blocks; the first begins where the output does.
    """
    starts, size = np.array(window.starts[2]), window.size.x
    lows, highs = _blocks(window, block.x, 2)
    nexts, stops = lows[1:], highs[:-1]
    inside = (stops > starts[0]) & (stops < window.covered.stop.x)
    nexts, stops = nexts[inside], stops[inside]
    last = starts[np.searchsorted(starts, stops, side="left") - 1]
    return int((last + size - nexts).max(initial=0))


def _blocks(window: Window, extent: int, axis: int) -> tuple[Places, Places]:
    """Return the first voxel of the volume that each block needs, and the one after its last.

    Args:
        extent: the extent of blocks of output along an axis.
        axis: the axis, 0 for z.
    """
    begins = np.arange(0, window.output[axis], extent)
    ends = (begins + extent).clip(max=window.output[axis])
    return window.resampled.taps[axis].needs(begins, ends) if window.resampled else (begins, ends)
