"""Extents of an output's chunks."""

from __future__ import annotations

from znni.core.shapes import Vec3

CHUNK = 64


def chunk_extents(patch: Vec3, size: Vec3) -> Vec3:
    """Extents of chunks for output that is written in patches.

    Where the patch's extent has a divisor near 64 it is the chunk's, so that no chunk is written
    twice.

    Args:
        patch: extents of the blocks that are written, which begin at multiples of it.
        size: of the output.
    """
    return Vec3(*map(_chunk_extent, patch.minimum(size))).minimum(size)


def _chunk_extent(patch: int) -> int:
    """The divisor of a patch's extent nearest to 64 by ratio, or 64 where none is within twice."""
    near = [extent for extent in range(CHUNK // 2, 2 * CHUNK + 1) if patch % extent == 0]
    return min(near, key=lambda extent: max(extent / CHUNK, CHUNK / extent), default=CHUNK)
