"""The places of a job's blocks: what each reads of the volume, on average."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from znni.core.shapes import Box, Vec3
from znni.core.spline_weights import Places
from znni.network.geometry import extents_read, input_box
from znni.network.network import Network
from znni.network.window import AxisWindows


class AxisPlaces(NamedTuple):
    """The places of a job's blocks along an axis.

    Attributes:
        volume: the extent of the volume.
        origin: the voxel of the volume at which the input of the network's first output voxel
            begins; negative if that is beyond the volume.
        output: the extent of the output that is wanted.
        first: its first voxel within the whole output of a tiled network.
        alignment: the voxels of the whole output at whose multiples blocks begin.
        windows: the windows along the axis, if the network is computed in windows. Then a block
            reads all windows that cover voxels which it writes.
    """

    volume: int
    origin: int
    output: int
    first: int
    alignment: int
    windows: AxisWindows | None = None

    def read(self, patch: int, start: int, stop: int) -> tuple[Places, Places]:
        """Return the first voxel of the volume that each block reads, and the one after its last.

        Args:
            patch: the output voxels of a block.
            start: the first voxel of the input for a block whose first output voxel is 0; any if
                there are windows.
            stop: the voxel after the last; any likewise.
        """
        if self.windows:
            written = self.origin + np.arange(0, self.output, patch)
            ends = (written + patch).clip(max=self.origin + self.output)
            low, high = self.windows.around(written, ends)
            return low.clip(0, self.volume), high.clip(0, self.volume)
        alignment, end = self.alignment, self.first + self.output
        last = max(0, -(-end // alignment) * alignment - patch)  # it is shifted back to there
        begins = np.arange(self.first // alignment * alignment, end, patch).clip(max=last)
        places = begins + self.origin
        return (places + start).clip(0, self.volume), (places + stop).clip(0, self.volume)


# The places of a job's blocks, for each axis.
JobPlaces: TypeAlias = tuple[AxisPlaces, AxisPlaces, AxisPlaces]


@lru_cache(maxsize=2**16)
def read_along(places: AxisPlaces | None, patch: int, start: int, stop: int) -> float:
    """Return the voxels of the volume that a block reads, averaged over all blocks of a job."""
    if places is None:
        return float(stop - start)
    starts, stops = places.read(patch, start, stop)
    return float((stops - starts).mean())


@lru_cache(maxsize=2**16)
def chunks_along(places: AxisPlaces, patch: int, start: int, stop: int, chunk: int) -> float:
    """Return the chunks of an extent that a block overlaps, averaged over all blocks of a job."""
    starts, stops = places.read(patch, start, stop)
    return float(np.where(stops > starts, (stops - 1) // chunk - starts // chunk + 1, 0).mean())


def voxels_read(network: Network, patch: Vec3, places: JobPlaces | None) -> float:
    """Return the voxels of the volume that a patch reads, on average over all patches of a job.

    Args:
        network: the network to run.
        patch: the output voxels of a patch.
        places: the places of the job's patches; None if none of them reaches beyond the volume.
    """
    box = box_read(network, patch)
    return prod(map(read_along, places or 3 * (None,), patch, *box))


def box_read(network: Network, patch: Vec3) -> Box:
    """Return the voxels that are read for a patch whose first output voxel is 0.

    For windows, it is the largest such box. About as much of it lies on each side of the patch.
    """
    if not network.window:
        return input_box(network, patch)
    size = extents_read(network, patch)
    start = (patch - size) // 2
    return Box(start, start + size)
