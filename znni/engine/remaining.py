"""Which voxels of a job are still to be written, whatever the patches that wrote the others."""

from __future__ import annotations

from collections.abc import Iterator

from znni.engine.tiles import Tile, tiles
from znni.shapes import Box, Vec3

ZERO = Vec3(0, 0, 0)


class Remaining:
    """The part of an output that is not written yet, as boxes that do not overlap.

    Patches cover one box after the other, in order. What a patch leaves of its box is at most three
    boxes: the rest of its row, of its layer of rows, and of the layers. So where a run goes on with
    patches of another size, they cover what is left and nothing else.

    Args:
        output: extents of the output.
    """

    def __init__(self, output: Vec3) -> None:
        self._boxes = [Box(ZERO, output)]  # the first one begins where the next tile does

    @property
    def voxels(self) -> int:
        """How many are left."""
        return sum(box.size.volume for box in self._boxes)

    def tiles(self, patch: Vec3) -> Iterator[Tile]:
        """Patches that cover what is left; the boxes that they write partition it."""
        for box in tuple(self._boxes):
            for tile in tiles(box.size, patch):
                yield Tile(tile.computed.shifted(box.start), tile.written.shifted(box.start))

    def take_off(self, tile: Tile) -> None:
        """Note that the first of the tiles left is written."""
        box, start, stop = self._boxes[0], tile.written.start, tile.written.stop
        left = (
            Box(Vec3(start.z, start.y, stop.x), Vec3(stop.z, stop.y, box.stop.x)),
            Box(Vec3(start.z, stop.y, box.start.x), Vec3(stop.z, box.stop.y, box.stop.x)),
            Box(Vec3(stop.z, box.start.y, box.start.x), box.stop),
        )
        self._boxes[:1] = [part for part in left if min(part.size) > 0]
