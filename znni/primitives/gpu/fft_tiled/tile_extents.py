"""Which tiles a layer is cut into."""

from __future__ import annotations

from functools import cache

from znni.core.shapes import Vec3

# Extents that tiles can have: whole lines of frequencies.
LENGTHS = (8, 12, 16, 20, 24, 28, 32)


def tile_extents(largest: int, smaller: int, out: Vec3, kernel: Vec3) -> Vec3 | None:
    """Extents of the tiles for an output of size ``out``.

    Along each axis the length up to ``largest`` whose tiles have the fewest voxels together, of
    those the smallest.

    Returns:
        The extents, or None where no tile holds the kernel, or where none is larger than
        ``smaller``: then a ``largest`` of that does the same.
    """
    extents = [_extent(largest, *axis) for axis in zip(out, kernel, strict=True)]
    found = [extent for extent in extents if extent is not None]
    if len(found) < len(extents) or max(found) <= smaller:
        return None
    return Vec3(*found)


@cache
def _extent(largest: int, written: int, taps: int) -> int | None:
    holding = (t for t in LENGTHS if taps < t <= largest)
    return min(holding, key=lambda t: -(-written // (t - taps + 1)) * t, default=None)
