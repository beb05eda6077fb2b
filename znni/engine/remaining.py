"""Which voxels of a job are still to be written, whatever the patches that wrote the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from znni.core.shapes import Box, Vec3
from znni.engine.tiles import Tile, tiles


class Remaining:
    """The part of an output that is not written yet, as boxes that do not overlap.

    Patches cover one box after the other. What a patch that is the next in order leaves of its box
    is at most three boxes: the rest of its row, of its layer of rows, and of the layers. So where a
    run goes on with patches of another size, they cover what is left and nothing else; and where it
    goes on with the same, they are those of a run that was never stopped, at the same places.

    Args:
        output: extents of the output.
        history: boxes that were written (True), or lost since (False), in order.

    Attributes:
        output: the same.
    """

    def __init__(self, output: Vec3, history: Iterable[tuple[Box, bool]] = ()) -> None:
        self.output = output
        self._boxes = [Box(Vec3(0, 0, 0), output)]
        for box, written in history:
            if written:
                self.take_off(box)
            else:
                self._boxes.insert(0, box)

    @property
    def voxels(self) -> int:
        """How many are left."""
        return sum(box.size.volume for box in self._boxes)

    def tiles(self, patch: Vec3) -> Iterator[Tile]:
        """Patches that cover what is left; the boxes that they write partition it."""
        for box in tuple(self._boxes):
            yield from tiles(self.output, patch, box)

    def take_off(self, box: Box) -> None:
        """Note that a box is written."""
        self._boxes = [part for left in self._boxes for part in left.without(box)]
