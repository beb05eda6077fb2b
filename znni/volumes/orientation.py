"""Orientation of voxels in the space of a patient, as NIfTI and ITK's formats have it.

NIfTI's axes of space run to the right, anterior and superior (RAS). Those of ITK run to the left,
posterior and superior (LPS).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.volume import Affine, Grid, Point
from znni.volumes.grid_attributes import grid_of

SCANNER = 1  # NIfTI's number of the space of a scanner
LETTERS = ("LR", "PA", "IS")  # the ends of the axes of space
FLIPPED = np.array([-1.0, -1.0, 1.0])  # exchanges RAS and LPS


def nearest_axes(affine: Affine) -> list[tuple[int, int]]:
    """Return the axis of space that each axis x, y and z of a volume runs along, and 1 or -1.

    The axes that lie closest choose first, as in nibabel.
    """
    steps = np.reshape(affine.rows, (3, 4))[:, :3]
    lengths = np.linalg.norm(steps, axis=0)
    left, _, right = np.linalg.svd(steps / np.where(lengths, lengths, 1.0))
    rotation = left @ right
    found = dict[int, tuple[int, int]]()
    for axis in np.argsort(-np.abs(rotation).max(axis=0), kind="stable"):
        along = int(np.abs(rotation[:, axis]).argmax())
        found[int(axis)] = along, -1 if rotation[along, axis] < 0 else 1
        rotation[along] = 0
    return [found[axis] for axis in range(3)]


def letters(affine: Affine) -> str:
    """Return the directions in space of the axes x, y and z of a volume, such as ``LPS``."""
    return "".join(LETTERS[along][sign > 0] for along, sign in nearest_axes(affine))


def in_words(affine: Affine) -> str:
    """Return in words how the axes of a volume run in space, and where its first voxel lies."""
    place = ", ".join(f"{number:g}" for number in affine.rows[3::4])
    axes = f"orientation {letters(affine)} of its axes x, y and z"
    return f"{axes}, first voxel at ({place}) in that space"


def origin_of(affine: Affine | None, scale: Point, attributes: Mapping[str, Any]) -> Point:
    """Return the place of the first voxel in the grid of a volume.

    If the volume's axes run along the axes of space, this is its place in space. Otherwise only the
    affine has the place, because a grid has neither turns nor reflections. The grid then has the
    place that the attributes of an output note, if these are still about this volume.
    """
    noted = grid_of(attributes)
    if affine is None:
        return 0.0, 0.0, 0.0
    rows = np.reshape(affine.rows, (3, 4))
    straight = np.diag(scale[::-1])
    if np.allclose(rows[:, :3], straight, rtol=1e-5, atol=1e-5 * min(scale)):
        x, y, z = map(float, rows[:, 3])
        return z, y, x
    if noted.affine and np.allclose(affine.rows, noted.affine.rows, rtol=1e-5):
        return noted.translation
    return 0.0, 0.0, 0.0


def affine_from_lps(steps: NDArray[np.float64], origin: NDArray[np.float64]) -> Affine:
    """Return the affine of voxels whose places are given in LPS.

    Args:
        steps: the way from a voxel to the next one (3, 3): a row for each axis x, y and z.
        origin: the place of the first voxel.

    Raises:
        ValueError: two of the axes are parallel, or a number is not finite.
    """
    rows = np.column_stack([*steps, origin]) * FLIPPED[:, np.newaxis]
    if not np.isfinite(rows).all() or abs(np.linalg.det(rows[:, :3])) == 0:
        raise ValueError(f"the directions of its axes are {steps.tolist()}, which span no space")
    return Affine(tuple(float(number) + 0.0 for number in rows.ravel()), SCANNER)


def steps_in_lps(grid: Grid) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the way from a voxel to the next one, and the place of the first voxel, in LPS.

    They are as ``affine_from_lps`` takes them. Without an affine, the axes run as in LPS.
    """
    if grid.affine is None:
        return np.diag(grid.scale[::-1]), np.array(grid.translation[::-1])
    rows = np.reshape(grid.affine.rows, (3, 4)) * FLIPPED[:, np.newaxis] + 0.0
    return rows[:, :3].T, rows[:, 3]
