"""The patches that cover an output, by number."""

from __future__ import annotations

import numpy as np

from znni.core.shapes import Axis, Box, Vec3, by_columns
from znni.engine.tiles import ZERO, Job, Tile


class TileGrid:
    """The patches that cover an output, by number, in the order of ``cover``.

    Args:
        job: which output is wanted.
        patch: extents of a patch, a multiple of the job's alignment.
        swept: as for ``cover``.

    Attributes:
        patch: extents of a patch.
        swept: the axis along which patches go on from each other; None: none does.
        column: the number of patches of a column; 1 without a sweep.
    """

    def __init__(self, job: Job, patch: Vec3, swept: Axis | None = None) -> None:
        self.patch, self.swept = patch, swept
        self._job = job
        self._before = job.first // job.alignment * job.alignment - job.first
        self._order = by_columns(swept)
        counts = (job.output - self._before).ceil_div(patch)
        self._counts = Vec3(*(counts[axis] for axis in self._order))
        self.column = self._counts.x if swept else 1

    def __len__(self) -> int:
        """Return the number of patches."""
        return self._counts.volume

    def tile(self, number: int) -> Tile:
        """Return the place of a patch."""
        ordered = tuple(map(int, np.unravel_index(number, self._counts)))
        index = Vec3(*(ordered[self._order.index(axis)] for axis in range(3)))
        start = (self._before + index * self.patch).maximum(ZERO)
        stop = (self._before + (index + 1) * self.patch).minimum(self._job.output)
        (tile,) = self._job.tiles(self.patch, Box(start, stop), swept=self.swept)
        return tile

    def number(self, written: Box) -> int | None:
        """Return the number of the patch that writes a box; None if none does."""
        place = (written.start - self._before) // self.patch
        index = Vec3(*(place[axis] for axis in self._order))
        if not Box(index, index + 1).within(Box(ZERO, self._counts)):
            return None
        number = int(np.ravel_multi_index(index, self._counts))
        return number if self.tile(number).written == written else None
