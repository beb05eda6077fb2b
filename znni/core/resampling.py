"""The geometry of resampling: which voxels of one grid give a voxel of another over the same space.

Voxel ``o`` of the target lies at ``(o + 0.5) * source / target - 0.5`` of the source, as in
``scipy.ndimage.zoom`` with ``grid_mode`` and in ``skimage.transform.resize``.
"""

from __future__ import annotations

from itertools import product
from math import floor, prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Box, Vec3

# Positions along an axis.
Places: TypeAlias = NDArray[np.int64]


class AxisResampling(NamedTuple):
    """The resampling along an axis.

    Attributes:
        source: the extent of the source in voxels.
        target: the extent of the target in voxels.
        order: 1: linear interpolation of the two nearest voxels; 0: the nearest voxel.
    """

    source: int
    target: int
    order: int

    def at(self, voxels: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the positions of target voxels in the source."""
        return (voxels + 0.5) * (self.source / self.target) - 0.5

    def first(self, voxels: NDArray[np.integer]) -> Places:
        """Return the first source voxel that each target voxel needs."""
        found = np.floor(self.at(voxels) + (0.5 if self.order == 0 else 0.0)).astype(np.int64)
        return found.clip(0, self.source - 1)

    def needs(self, begins: Places, ends: Places) -> tuple[Places, Places]:
        """Return the source voxels that ranges of target voxels need, as begins and ends.

        Args:
            begins: the first target voxel of each range.
            ends: the voxel after its last.
        """
        if self.source == self.target:
            return begins, ends
        return self.first(begins), (self.first(ends - 1) + 1 + self.order).clip(max=self.source)

    def gives(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of target voxels that depend on a range of source voxels alone."""
        voxels = np.arange(self.target)
        first, stop = self.needs(voxels, voxels + 1)
        return int(np.searchsorted(first, begin)), int(np.searchsorted(stop, end, side="right"))

    def shares(self, voxel: int) -> list[tuple[int, float]]:
        """Return the source voxels that a target voxel is the weighted sum of, and their weights."""
        at = float(self.at(np.array(voxel)))
        if self.order == 0:
            return [(int(self.first(np.array(voxel))), 1.0)]
        below = floor(at)
        pairs = (below, below + 1 - at), (below + 1, at - below)
        return [(min(max(place, 0), self.source - 1), share) for place, share in pairs if share]

    def most_needed(self, extent: int) -> int:
        """Return the most source voxels that a range of so many target voxels needs."""
        begins = np.arange(max(1, self.target - extent + 1))
        first, stop = self.needs(begins, (begins + extent).clip(max=self.target))
        return int((stop - first).max())


class Resampling(NamedTuple):
    """The resampling of a volume to other voxels.

    Attributes:
        z: the resampling along z.
        y: the resampling along y.
        x: the resampling along x.
    """

    z: AxisResampling
    y: AxisResampling
    x: AxisResampling

    @property
    def axes(self) -> tuple[AxisResampling, AxisResampling, AxisResampling]:
        """The resampling along each axis."""
        return self.z, self.y, self.x

    @property
    def source(self) -> Vec3:
        """The extents of the source."""
        return Vec3(*(along.source for along in self.axes))

    @property
    def target(self) -> Vec3:
        """The extents of the target."""
        return Vec3(*(along.target for along in self.axes))

    def source_box(self, box: Box) -> Box:
        """Return the source voxels that a box of the target needs."""
        ends = [
            along.needs(np.array([start]), np.array([stop]))
            for along, start, stop in zip(self.axes, *box, strict=True)
        ]
        return Box(*(Vec3(*(int(end[0]) for end in side)) for side in zip(*ends, strict=True)))

    def target_box(self, box: Box) -> Box:
        """Return the target voxels that a box of the source gives; they depend on no others."""
        ends = [
            along.gives(start, stop) for along, start, stop in zip(self.axes, *box, strict=True)
        ]
        return Box(*(Vec3(*side) for side in zip(*ends, strict=True)))

    def shares(self, voxel: Vec3) -> list[tuple[Vec3, float]]:
        """Return the source voxels that a target voxel is the weighted sum of, and their weights."""
        along = [axis.shares(at) for axis, at in zip(self.axes, voxel, strict=True)]
        return [
            (Vec3(*(at for at, _ in some)), prod(share for _, share in some))
            for some in product(*along)
        ]

    def most_needed(self, extents: Vec3) -> Vec3:
        """Return the most source voxels, per axis, that a box of the target needs."""
        return Vec3(
            *(along.most_needed(extent) for along, extent in zip(self.axes, extents, strict=True))
        )

    def __str__(self) -> str:
        return f"resampled from {self.source} to {self.target} voxels"
