"""The place of a scan in space, as nnU-Net keeps it beside probabilities.

Each of nnU-Net's readers takes its own entry. So there is one for each, of plain Python numbers.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.cases.arrays import UNTURNED, Turn
from znni.cases.scan import Scan
from znni.core.shapes import Box, Vec3
from znni.core.volume import Affine, Grid
from znni.volumes.orientation import FLIPPED, SCANNER, letters

Matrix: TypeAlias = NDArray[np.float64]

TO_LPS = np.diag([*FLIPPED, 1.0])


def geometry_of(scan: Scan, crop: Box) -> dict[str, Any]:
    """Return the place of a scan, and the box of it that counts."""
    stored = affine_of(scan.stored)
    size = scan.turn.inverse.extents(scan.volume.size)
    turned = turned_affine(stored, scan.turn, size)
    z, y, x = scan.spacing
    itk = TO_LPS @ turned
    in_itk: dict[str, Any] = {
        "spacing": (x, y, z),
        "origin": tuple(itk[:3, 3].tolist()),
        "direction": tuple((itk[:3, :3] / (x, y, z)).ravel().tolist()),
    }
    if scan.turn != UNTURNED:
        in_itk["original_orientation"] = _letters(stored)
    starts_and_stops = zip(crop.start, crop.stop, strict=True)
    return {
        "sitk_stuff": in_itk,
        "nibabel_stuff": {"original_affine": stored.tolist(), "reoriented_affine": turned.tolist()},
        "spacing": [z, y, x],
        "shape_before_cropping": tuple(scan.volume.size),
        "bbox_used_for_cropping": [list(ends) for ends in starts_and_stops],
        "shape_after_cropping_and_before_resampling": tuple(crop.size),
    }


def affine_of(grid: Grid) -> Matrix:
    """Return the matrix from a voxel (x, y, z, 1) to its place, right, anterior and superior."""
    if grid.affine:
        return np.vstack([np.reshape(grid.affine.rows, (3, 4)), (0, 0, 0, 1)])
    z, y, x = grid.scale
    return np.asarray(TO_LPS @ np.diag([x, y, z, 1.0]))


def turned_affine(affine: Matrix, turn: Turn, size: Vec3) -> Matrix:
    """Return the matrix of a scan after a turn."""
    made = affine.copy()
    for at, (axis, is_reversed) in enumerate(zip(*turn, strict=True)):
        column = affine[:, 2 - axis]
        made[:, 2 - at] = -column if is_reversed else column
        if is_reversed:
            made[:, 3] += column * (size[axis] - 1)
    return made


def _letters(affine: Matrix) -> str:
    """Return the directions of a scan's axes x, y and z, such as ``LPS``."""
    return letters(Affine(tuple(map(float, affine[:3].ravel())), SCANNER))
