"""A block: the one value that goes from reading through all stages to writing.

A block is what one patch needs and makes, for any network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import ZERO, Box, Vec3
from znni.engine.scaling import StoredScaling
from znni.engine.tiles import Tile
from znni.network.window import Window

# What the values of a block are:
#   in_progress: the network's input (f, z, y, x) at first, then the result of the latest stage;
#   known: the output, for which no layers run. No stage changes it. It is None if nobody needs it,
#     so that it is all 0. If not, it is that of an aligned block or a voxel (f', z, y, x), which
#     repeats;
#   stored: the part (f', z, y, x) that the block writes, in the type in which it is stored.
BlockForm: TypeAlias = Literal["in_progress", "known", "stored"]

NOWHERE = Box(ZERO, ZERO)


class Block(NamedTuple):
    """A block on its way from reading to writing.

    Attributes:
        tile: its place in the job.
        values: what the network sees (f, z, y, x); later what the last stage made of it.
        start: the voxel of a tiled network's whole output at which the block begins. If there are
            windows, the voxel of the volume at which the values begin.
        scaling: the scaling that stored values still need; None: none.
        written: the voxels of the output that the block writes, if there are windows.
        wanted: which of these voxels (z, y, x) need output; None: all.
        form: what the values are.
        number: its place among the blocks that its process computes. In a sweep, the process takes
            them in this order.
    """

    tile: Tile
    values: Any
    start: Vec3 = ZERO
    scaling: StoredScaling | None = None
    written: Box = NOWHERE
    wanted: NDArray[np.bool_] | None = None
    form: BlockForm = "in_progress"
    number: int = 0

    def through(self, stage: ComputeStage) -> Block:
        """Return the block after a stage, unless its output is known."""
        return self if self.form == "known" else self._replace(values=stage(self))

    def with_output(self, window: Window) -> NDArray[np.bool_] | None:
        """Return which voxels that the block writes have output; the others are 0. None: all."""
        if window.resampled or self.written.within(window.covered):
            return self.wanted
        covered = np.zeros(self.written.size, np.bool_)
        if part := self.written.intersection(window.covered):
            covered[part.shifted(ZERO - self.written.start).slices] = True
        return covered if self.wanted is None else covered & self.wanted


# A stage that computes: it takes a block, and returns the block's new values.
ComputeStage: TypeAlias = Callable[[Block], Any]


def one_stage(stages: Sequence[ComputeStage]) -> ComputeStage:
    """Return one stage that does what several do, one after the other."""

    def stage(block: Block) -> Any:
        for each in stages:
            block = block.through(each)
        return block.values

    return stage


def alone(values: Any, start: Vec3 = ZERO, scaling: StoredScaling | None = None) -> Block:
    """Return a block that belongs to no job."""
    return Block(Tile(NOWHERE, NOWHERE), values, start, scaling)
