"""Extents of the chunks of outputs, which planner and writers agree on."""

from __future__ import annotations

from functools import cache

from znni.core.shapes import Vec3

CHUNK = 64  # voxels per axis, about


def chunk_extents(patch: Vec3, size: Vec3, *, shared: bool = False, target: int = CHUNK) -> Vec3:
    """Return the extents of chunks for output that is written in patches.

    If a patch's extent has a divisor near 64, the chunk takes it: then no chunk is written twice.

    Args:
        patch: extents of the written blocks, which begin at multiples of them.
        size: extents of the output.
        shared: several processes write, so that chunks must divide patches.
        target: voxels per axis, about.
    """
    extents = patch.minimum(size)
    chunk = (
        chunk_extent(extent, target, shared=shared and extent < whole)
        for extent, whole in zip(extents, size, strict=True)
    )
    return Vec3(*chunk).minimum(size)


@cache
def chunk_extent(patch: int, target: int = CHUNK, *, shared: bool = False) -> int:
    """Return the divisor of a patch's extent nearest to a target by ratio.

    If none is within twice, return the target, or with ``shared`` the nearest one all the same.
    """
    few = range(1, patch + 1) if shared else range(target // 2, 2 * target + 1)
    divisors = [extent for extent in few if patch % extent == 0]
    return min(divisors, key=lambda extent: max(extent / target, target / extent), default=target)
