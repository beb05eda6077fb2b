"""The patches that cover an output, by number."""

from __future__ import annotations

import numpy as np

from znni.core.shapes import ONE, ZERO, Axis, Box, Vec3, by_columns
from znni.engine.tiles import Job, Tile


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
        box = self._run(self._index(number), ONE)
        (tile,) = self._job.tiles(self.patch, box, swept=self.swept)
        return tile

    def number(self, written: Box) -> int | None:
        """Return the number of the patch that writes a box; None if none does."""
        place = (written.start - self._before) // self.patch
        index = Vec3(*(place[axis] for axis in self._order))
        if not Box(index, index + 1).within(Box(ZERO, self._counts)):
            return None
        number = int(np.ravel_multi_index(index, self._counts))
        return number if self.tile(number).written == written else None

    def share(self, index: int, shares: int) -> list[Box]:
        """Return the boxes of one share of the output, if it is shared out evenly by patches.

        Each share is a run of patches, which at most five boxes cover.

        Args:
            index: number of the share, from 0.
            shares: number of shares.
        """
        at, end = (len(self) * part // shares for part in (index, index + 1))
        counts, boxes = self._counts, []
        row, layer = counts.x, counts.y * counts.x
        while at < end:
            first = self._index(at)
            if at % layer == 0 and end - at >= layer:
                run = Vec3((end - at) // layer, counts.y, counts.x)
            elif at % row == 0 and end - at >= row:
                run = Vec3(1, min((end - at) // row, counts.y - first.y), counts.x)
            else:
                run = Vec3(1, 1, min(end - at, counts.x - first.x))
            at += run.volume
            boxes.append(self._run(first, run))
        return boxes

    def _index(self, number: int) -> Vec3:
        """Return the place of a patch in the grid, whose axes are ordered as patches follow."""
        return Vec3(*map(int, np.unravel_index(number, self._counts)))

    def _run(self, index: Vec3, counts: Vec3) -> Box:
        """Return the output voxels of patches from an index on, so many along each axis."""
        places = [self._order.index(axis) for axis in range(3)]
        first, size = (Vec3(*(it[place] for place in places)) for it in (index, counts))
        start = self._before + first * self.patch
        stop = start + size * self.patch
        return Box(start.maximum(ZERO), stop.minimum(self._job.output))
