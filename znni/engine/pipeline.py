"""A whole volume through a plan: patch after patch, read, computed and written at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.options import OutputType
from znni.core.volume import Sink
from znni.engine.remaining import Remaining
from znni.engine.skipping import Blocks
from znni.engine.stages import Work, of_values, run_stages
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Tile
from znni.plans.plan import Plan

Progress: TypeAlias = Callable[[int, int], None]


def no_progress(_done: int, _total: int) -> None:
    """Tell nobody."""


class Runner(Protocol):
    """Computes patch after patch."""

    @property
    def plan(self) -> Plan:
        """What it runs."""

    def stages(self, stopwatch: Stopwatch) -> Sequence[Work]:
        """What is done with a patch, one after the other: the first in the thread that asks.

        The first takes the input (f, z, y, x), the last gives the dense output (f', Z, Y, X), in
        float32 or as it is stored. No stage takes a patch before the next has its last one.

        Args:
            stopwatch: learns how long each works.
        """


@dataclass(frozen=True)
class RunState:
    """What is left of a job, from its input to its output.

    Attributes:
        blocks: the input.
        output: takes the results.
        dtype: of the values written.
        remaining: the output not written yet.
        progress: called after each patch with the output voxels written and those wanted.
    """

    blocks: Blocks
    output: Sink
    dtype: OutputType
    remaining: Remaining
    progress: Progress = no_progress

    def write(self, tile: Tile, dense: NDArray[Any]) -> None:
        """Write what is wanted of a patch's dense output (f', Z, Y, X)."""
        wanted = dense[:, *tile.written_in_patch.slices]
        self.output.write(tile.written, convert(wanted, self.dtype))

    def note_written(self, tile: Tile) -> None:
        """A patch is no longer among the remaining; those who watch are told."""
        self.remaining.take_off(tile.written)
        total = self.remaining.output.volume
        self.progress(total - self.remaining.voxels, total)


class Patch(NamedTuple):
    """A patch on its way through the stages.

    Attributes:
        tile: its place in the job.
        values: what the last stage made of it.
        finished: whether they are its output, so that nothing is computed.
    """

    tile: Tile
    values: Any
    finished: bool


def run_volume(state: RunState, runner: Runner, stopwatch: Stopwatch) -> None:
    """Compute what is left of a job patch by patch, and write each output voxel once.

    Reading, the layers on each device, transfer and writing are stages, which work at a time, each
    on a patch of its own. An error in any of them stops all and is raised as itself; patches that
    had passed the one that failed are written, and are no longer among the remaining.

    Args:
        state: what is left of the job.
        runner: computes the patches.
        stopwatch: learns where the time goes.
    """

    def read(tile: Tile) -> Patch:
        with stopwatch.during("reading"):
            return Patch(tile, *state.blocks.read(tile))

    def write(patch: Patch) -> None:
        tile, dense, _ = patch
        with stopwatch.during("writing"):
            state.write(tile, dense)
        state.note_written(tile)

    computing = map(_unless_finished, map(of_values, runner.stages(stopwatch)))
    tiles = list(state.remaining.tiles(runner.plan.patch))
    with stopwatch.during("running"):
        run_stages(tiles, [read, *computing, write], here=1)


def _unless_finished(compute: Work) -> Work:
    """What is done with a patch, if anything is to be done."""
    return lambda patch: patch if patch.finished else compute(patch)


def convert(values: NDArray[Any], dtype: OutputType) -> NDArray[Any]:
    """Values as they are stored: from float32, or as they are already.

    ``uint8`` maps 0..1 to 0..255, and what lies outside to the ends; ``float16`` is infinite
    beyond 65504.
    """
    if values.dtype == dtype:
        return values
    if dtype == "uint8":
        scaled = values * np.float32(255)
        np.rint(scaled, out=scaled)
        return scaled.clip(0, 255, out=scaled).astype(np.uint8)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def bytes_per_input_voxel(itemsize: int) -> int:
    """Host bytes of a block read ahead: as stored, a copy where it is padded, and as float32."""
    return 2 * itemsize + 4


def bytes_per_output_voxel(dtype: OutputType) -> int:
    """Host bytes of a block computed, one being written, and a copy of that as it is stored.

    The copy of a block of float32 is HDF5's, of a part that is not contiguous; uint8 is scaled in
    float32 first.
    """
    scaled = 4 if dtype == "uint8" else 0
    return 2 * 4 + scaled + np.dtype(dtype).itemsize
