"""Samples of a volume, read from the coarsest stored resolution that is fine enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Box, Vec3
from znni.volumes.array import ArrayVolume

SLAB = 2**24  # values read at a time
NEARLY = 1.0001  # factors of resolutions are rounded when they are stored


@dataclass(frozen=True)
class Resolution:
    """A stored resolution of a volume.

    Attributes:
        volume: its voxels.
        factor: voxels of the finest resolution along one of its voxels, for each axis.
    """

    volume: ArrayVolume
    factor: tuple[float, float, float]

    def places(self, box: Box, stride: Vec3) -> list[list[int]]:
        """Return the voxels, along each axis, in which the samples of a box lie.

        Args:
            box: voxels of the finest resolution.
            stride: step between the samples there.
        """
        axes = zip(box.start, box.stop, stride, self.factor, self.volume.size, strict=True)
        return [
            [min(floor((at + 0.5) / factor), extent - 1) for at in range(start, stop, step)]
            for start, stop, step, factor, extent in axes
        ]


class Resolutions:
    """All stored resolutions of a volume.

    Args:
        volume: the volume, at its finest resolution.

    Raises:
        InvalidInput: one of its resolutions cannot be opened.
    """

    def __init__(self, volume: ArrayVolume) -> None:
        self.volume = volume
        coarser = [Resolution(one, _factor(volume, one)) for one in volume.coarser()]
        self._all = [Resolution(volume, (1.0, 1.0, 1.0)), *coarser]

    def __len__(self) -> int:
        """Return the number of resolutions."""
        return len(self._all)

    @property
    def factors(self) -> list[Vec3]:
        """Steps, in voxels of the finest resolution, at which each resolution is fine enough."""
        return [Vec3(*(ceil(part / NEARLY) for part in one.factor)) for one in self._all]

    def at(self, stride: Vec3) -> Resolution:
        """Return the coarsest resolution whose voxels are no larger than a step of samples."""
        fine = (
            one
            for one in self._all
            if all(f <= step * NEARLY for f, step in zip(one.factor, stride, strict=True))
        )
        return min(fine, key=lambda one: one.volume.size.volume)

    def cost(self, box: Box, stride: Vec3) -> int:
        """Return the number of voxels that must be read for the samples of one map."""
        z, y, x = self.at(stride).places(box, stride)
        return Box(Vec3(z[0], y[0], x[0]), Vec3(z[-1] + 1, y[-1] + 1, x[-1] + 1)).size.volume

    def sampled(self, feature: int, box: Box, stride: Vec3) -> NDArray[Any]:
        """Return one map (z, y, x) of a box, sampled with a stride along each axis.

        Args:
            feature: number of the map.
            box: voxels of the finest resolution.
            stride: step between the samples there.
        """
        chosen = self.at(stride)
        z, y, x = chosen.places(box, stride)
        samples = []
        for planes in _slabs(z, SLAB // ((y[-1] + 1 - y[0]) * (x[-1] + 1 - x[0]))):
            start = Vec3(planes[0], y[0], x[0])
            stop = Vec3(planes[-1] + 1, y[-1] + 1, x[-1] + 1)
            values = chosen.volume.read(Box(start, stop), slice(feature, feature + 1))[0]
            indices = (
                [place - first for place in places]
                for places, first in zip((planes, y, x), start, strict=True)
            )
            samples.append(values[np.ix_(*indices)])
        return np.concatenate(samples)


def _slabs(places: list[int], depth: int) -> Iterator[list[int]]:
    """Yield consecutive places in groups that span no more than a depth, or hold one place."""
    group: list[int] = []
    for place in places:
        if group and place - group[0] >= depth:
            yield group
            group = []
        group.append(place)
    yield group


def _factor(finest: ArrayVolume, coarse: ArrayVolume) -> tuple[float, float, float]:
    """Return how many voxels of the finest resolution are along one of a coarse one.

    The extents of voxels tell, unless they do not agree with the number of voxels.
    """
    axes = zip(finest.grid.scale, coarse.grid.scale, finest.size, coarse.size, strict=True)
    z, y, x = (
        wide / fine if fine > 0 < wide and abs(count * fine / wide - fewer) < 1 else count / fewer
        for fine, wide, count, fewer in axes
    )
    return z, y, x
