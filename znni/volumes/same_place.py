"""Comparison of the places of two volumes, as far as their files say them."""

from __future__ import annotations

import numpy as np

from znni.core.volume import Affine, Grid
from znni.core.voxel_size import LENGTHS
from znni.volumes.grid_attributes import in_micrometers

SHARE = 1e-2  # of a voxel, by which places may differ: files round
UNSET = (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)  # rows of an affine in which nobody put a place


def lie_apart(one: Grid, other: Grid) -> bool:
    """Return whether two grids of the same extents contradict each other.

    Only what both files say counts: the orientation, the extents of voxels if their units are
    known, and the origin if it is not zero. Many programs write an orientation without a unit. It
    counts as one in the unit of the other.
    """
    first_affine, second_affine = _affine(one), _affine(other)
    if first_affine and second_affine:
        units = [LENGTHS.get(grid.units[0] or "") for grid in (one, other)]
        factors = [1.0 if None in units else unit or 1.0 for unit in units]
        given, found = (
            np.reshape(affine.rows, (3, 4)) * factor
            for affine, factor in zip((first_affine, second_affine), factors, strict=True)
        )
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


def _affine(grid: Grid) -> Affine | None:
    """Return the orientation that a file tells; None if it tells none."""
    unset = grid.affine and not grid.units[0] and np.array_equal(grid.affine.rows, UNSET)
    return None if unset else grid.affine
