"""The rule by which MONAI's ``Spacing`` resamples a scan, and its inverse an output.

The number of voxels follows from the distance between the centres of the first and the last. If the
axes are perpendicular to 1e-8, both volumes begin with the centre of one voxel. Otherwise, as for
many oblique scans whose files have float32, both have one centre. ``Spacing`` makes this difference
by accident, because it looks for a corner that all others lie beyond.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.resampling import Resampling
from znni.core.shapes import Vec3
from znni.resampling.nnunet_rule import Spacing

# The difference of voxels that MONAI does not resample, in the unit of their extents, and also as a
# share of them.
TOLERANCE = 1e-3
SHARE = TOLERANCE + 1e-5

BEYOND = 1e-8  # how far a corner may lie before the first one


class _Grid(NamedTuple):
    """The voxels of a target, in source voxels, along each axis.

    Attributes:
        size: their number.
        starts: the centre of the first.
        steps: their distance.
    """

    size: tuple[int, ...]
    starts: tuple[float, ...]
    steps: tuple[float, ...]


def monai_resampling(
    shape: Vec3, axes: NDArray[np.float64], spacing: Spacing, order: int, output_order: int
) -> tuple[Resampling, Resampling]:
    """Return how MONAI resamples a scan, and how it resamples an output to the scan's voxels.

    Args:
        shape: the extents (z, y, x) of the scan.
        axes: the steps in space from voxel to voxel along each axis, as columns.
        spacing: the extents of the voxels wanted.
        order: the order of the spline for the scan.
        output_order: the order for the output.
    """
    there = _grid(tuple(shape[::-1]), axes[:, ::-1], spacing[::-1])  # MONAI's axes are x, y, z
    target, steps, starts = Vec3(*there.size[::-1]), there.steps[::-1], there.starts[::-1]
    back_steps = tuple(1 / step for step in steps)
    back_starts = tuple(-start / step for start, step in zip(starts, steps, strict=True))
    return (
        _resampling(shape, target, order, steps, starts),
        _resampling(target, shape, output_order, back_steps, back_starts),
    )


def _resampling(
    source: Vec3, target: Vec3, order: int, steps: tuple[float, ...], starts: tuple[float, ...]
) -> Resampling:
    (a, b, c), (d, e, f) = steps, starts
    return Resampling(source, target, (order, order, order), None, (a, b, c), (d, e, f))


def _grid(shape: tuple[int, ...], axes: NDArray[np.float64], spacing: tuple[float, ...]) -> _Grid:
    """Return the voxels wanted. All arguments are in the order x, y, z."""
    known = np.linalg.norm(axes, axis=0)
    wanted = np.where(np.abs(known - spacing) <= TOLERANCE, known, spacing)
    # Perpendicular axes next to the given ones: MONAI leaves out what is sheared.
    turned = axes @ np.linalg.inv(np.linalg.cholesky(axes.T @ axes).T)
    corners = np.array(list(product(*((0, extent - 1) for extent in shape)))).T
    places = np.linalg.solve(turned * wanted, axes @ corners)
    size = np.round(np.ptp(places, axis=1) + 1).astype(int)
    steps = wanted / known
    lowest = places.min(axis=1, keepdims=True)
    starts = np.zeros(3)
    if not (places - lowest <= BEYOND).all(axis=0).any():
        starts = np.array(shape) / 2 - steps * size / 2
    if tuple(size) == shape and max(*np.abs(steps - 1), *np.abs(starts)) <= SHARE:
        steps, starts = np.ones(3), np.zeros(3)
    return _Grid(tuple(map(int, size)), tuple(map(float, starts)), tuple(map(float, steps)))
