"""Comparison of the places of two volumes, as far as their files say them."""

from __future__ import annotations

import numpy as np

from znni.core.volume import Grid
from znni.volumes.grid_attributes import in_micrometers

SHARE = 1e-2  # of a voxel, by which places may differ: files round


def lie_apart(one: Grid, other: Grid) -> bool:
    """Return whether two grids of the same extents contradict each other.

    Only what both files say counts: the orientation, the extents of voxels if their units are
    known, and the origin if it is not zero.
    """
    if one.affine and other.affine and one.units == other.units:
        given, found = (np.reshape(it.rows, (3, 4)) for it in (one.affine, other.affine))
        step = np.linalg.norm(given[:, :3], axis=0).min()
        return not np.allclose(given, found, rtol=SHARE / 10, atol=SHARE * step)
    first, second = in_micrometers(one), in_micrometers(other)
    if first is None or second is None:
        return False
    if not np.allclose(first, second, rtol=SHARE):
        return True
    given, found = (
        np.multiply(grid.translation, np.divide(extents, grid.scale))
        for grid, extents in ((one, first), (other, second))
    )
    if not (given.any() and found.any()):
        return False
    return not np.allclose(given, found, rtol=0, atol=0.1 * min(first))
