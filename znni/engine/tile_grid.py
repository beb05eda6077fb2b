"""The patches that cover an output, by number."""

from __future__ import annotations

import numpy as np

from znni.core.shapes import Box, Vec3
from znni.engine.tiles import ZERO, Job, Tile


class TileGrid:
    """The patches that cover an output, by number, x fastest.

    Args:
        job: which output is wanted.
        patch: extents of a patch, a multiple of the job's alignment.

    Attributes:
        patch: extents of a patch.
    """

    def __init__(self, job: Job, patch: Vec3) -> None:
        self.patch = patch
        self._job = job
        self._before = job.first // job.alignment * job.alignment - job.first
        self._counts = (job.output - self._before).ceil_div(patch)

    def __len__(self) -> int:
        """Return the number of patches."""
        return self._counts.volume

    def tile(self, number: int) -> Tile:
        """Return the place of a patch."""
        index = Vec3(*map(int, np.unravel_index(number, self._counts)))
        start = (self._before + index * self.patch).maximum(ZERO)
        stop = (self._before + (index + 1) * self.patch).minimum(self._job.output)
        (tile,) = self._job.tiles(self.patch, Box(start, stop))
        return tile

    def number(self, written: Box) -> int | None:
        """Return the number of the patch that writes a box; None if none does."""
        index = (written.start - self._before) // self.patch
        if not Box(index, index + 1).within(Box(ZERO, self._counts)):
            return None
        number = int(np.ravel_multi_index(index, self._counts))
        return number if self.tile(number).written == written else None
