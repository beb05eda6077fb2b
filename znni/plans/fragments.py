"""The fragments that plain poolings make of a patch, and where their voxels lie in its output.

A pooling of window p makes a fragment for each offset within p (ZNNi, section V). The kernels of
pooling make them in the order of ``offsets``.
"""

from __future__ import annotations

from typing import NamedTuple

from znni.core.shapes import ONE, ZERO, Vec3, offsets
from znni.plans.segments import Segment


class Positions(NamedTuple):
    """The positions of the fragments of a patch.

    Attributes:
        at: the position of each fragment's first voxel in the patch's dense output.
        stride: the distance between neighbouring voxels of a fragment in that output.
    """

    at: tuple[Vec3, ...]
    stride: Vec3


def positions_after(segment: Segment, given: Positions, chosen: tuple[Vec3, ...]) -> Positions:
    """Return the positions of the fragments that a pass through a segment makes.

    A block of a tiled network is a single fragment of its own output.

    Args:
        segment: the segment.
        given: the positions of the fragments that the pass takes.
        chosen: the offset of each plain pooling.
    """
    if segment.is_tiled:
        return Positions((ZERO,), ONE)
    at, stride = given
    remaining = iter(chosen)
    for step in segment.steps:
        if step.pool:
            window = step.pool.window
            shifts = [next(remaining)] if step.pools_plainly else list(offsets(window))
            at = tuple(first + stride * offset for first in at for offset in shifts)
            stride *= window
    return Positions(at, stride)
