"""The state of a run: its input, its output and what is left to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from znni.core.option_types import OutputType
from znni.core.shapes import Axis, Box, Vec3
from znni.core.volume import Sink
from znni.engine.block_reader import BlockReader
from znni.engine.labels import Labels
from znni.engine.tiles import Tile

Progress: TypeAlias = Callable[[int, int], None]


def no_progress(_done: int, _total: int) -> None:
    """Ignore the progress."""


class ToDo(Protocol):
    """The blocks that a process computes, and where they go."""

    @property
    def voxels(self) -> int:
        """The number of voxels that are left."""

    @property
    def total(self) -> int:
        """The number of voxels that this process writes, with those written already."""

    def columns(self, patch: Vec3, *, swept: Axis | None = None) -> Iterator[Sequence[Tile]]:
        """Yield the patches to compute, those of a column at once.

        Without a sweep, each patch is a column. If others hand out patches, it waits for the next
        one, which comes by itself.

        Args:
            patch: extents of a patch.
            swept: the axis along which each patch goes on from the one before; None: none does.
        """

    def stop(self) -> None:
        """End the wait for the next patch: no more are taken."""

    def take_off(self, box: Box) -> None:
        """Note that a box is written."""


@dataclass(frozen=True)
class RunState:
    """The rest of a job, from its input to its output.

    Attributes:
        reader: reads the blocks of the input.
        output: takes the results.
        dtype: the type of the values, before they become labels.
        remaining: the output not written yet, or what of it is handed to this process.
        progress: called after each block with the output voxels written and those wanted.
        labels: how values become labels; None: the caller asks for values.
    """

    reader: BlockReader
    output: Sink
    dtype: OutputType
    remaining: ToDo
    progress: Progress = no_progress
    labels: Labels | None = None

    def report_written(self, tile: Tile) -> None:
        """Take a patch off the remaining ones, and report the progress."""
        self.remaining.take_off(tile.written)
        total = self.remaining.total
        self.progress(total - self.remaining.voxels, total)
