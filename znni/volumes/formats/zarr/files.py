"""Extents of the chunks and shards of an output that is written in patches."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from znni.core.chunks import CHUNK, chunk_extents
from znni.core.shapes import ONE, Vec3
from znni.core.volume import NewOutput

LEAST_SHARD, MOST_SHARD = 2**26, 2**30  # bytes before compression
FEWEST_CHUNKS = 8  # in a shard
AT_ONCE = 4  # large shards that are written side by side
TARGETS = (CHUNK, CHUNK // 2, CHUNK // 4)  # voxels per axis of chunks in shards, about


def chunk_and_shard(patch: Vec3, wanted: NewOutput, *, shared: bool = False) -> tuple[Vec3, Vec3]:
    """Return the extents of an output's chunks and of its files.

    Without shards, each chunk is a file. A shard has 64 MiB to 1 GiB where the plan's patches are
    large enough, and at least 8 chunks where they have so many. It lies within one patch, so it is
    written once. While it is written, its chunks are in memory: so it takes at most half of a
    block's values, which are counted once more for writing.

    Args:
        patch: extents of the written blocks, which begin at multiples of them.
        wanted: description of the output.
        shared: several processes write, so that no two patches may share a file.
    """
    usual = chunk_extents(patch, wanted.size, shared=shared)
    if not wanted.sharded:
        return usual, usual
    room = wanted.features * patch.minimum(wanted.size).volume // 2
    itemsize = np.dtype(wanted.dtype).itemsize
    most = min(MOST_SHARD // itemsize, room)
    enough = min(max(LEAST_SHARD // itemsize, room // AT_ONCE), most)
    for target in TARGETS:
        chunk = chunk_extents(patch, wanted.size, shared=shared, target=target)
        counts = _counts(patch.minimum(wanted.size), chunk, enough, most)
        if counts.volume >= FEWEST_CHUNKS:
            return chunk, chunk * counts
    return usual, usual * _counts(patch.minimum(wanted.size), usual, enough, most)


def _counts(extents: Vec3, chunk: Vec3, enough: int, most: int) -> Vec3:
    """Return how many chunks make a shard that is large enough, or else the largest one.

    Whole shards make a patch along each axis along which whole chunks do. If shards are equally
    large, the one with the shortest longest edge is returned. ``enough`` and ``most`` are voxels of
    a shard.
    """
    axes = [
        [n for n in range(1, extent // part + 1) if extent % (n * part) == 0] or [1]
        for extent, part in zip(extents, chunk, strict=True)
    ]
    fitting = (Vec3(*counts) for counts in product(*axes) if prod(counts) * chunk.volume <= most)

    def better(counts: Vec3) -> tuple[int, int, int, Vec3]:
        shard = chunk * counts
        beyond = max(0, shard.volume - enough)
        return min(shard.volume, enough), -beyond, -max(shard), counts

    return max(fitting, key=better, default=ONE)
