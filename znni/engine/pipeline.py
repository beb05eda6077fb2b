"""A whole volume through a plan: read ahead, compute, write behind, one block each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from znni.engine.patch import Runner
from znni.engine.remaining import Remaining
from znni.engine.skipping import Block, Blocks
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Job, Tile
from znni.options import OutputType
from znni.volume import Output

T = TypeVar("T")

Progress: TypeAlias = Callable[[int, int], None]

# Waits for a patch that was begun, and gives its dense output.
Finish: TypeAlias = Callable[[], NDArray[Any]]


def no_progress(_done: int, _total: int) -> None:
    """Tell nobody."""


def run_volume(
    blocks: Blocks,
    job: Job,
    runner: Runner,
    output: Output,
    dtype: OutputType,
    progress: Progress,
    remaining: Remaining,
    stopwatch: Stopwatch,
) -> None:
    """Compute what is left of a job patch by patch, and write each output voxel once.

    While one patch is computed the next block is read and the last one written. An error in any
    of the three stops all and is raised as itself; what was written stays written, and is no longer
    among the remaining.

    Args:
        blocks: the input.
        job: which output is wanted.
        runner: computes the patches.
        output: takes the results.
        dtype: of the values written.
        progress: called after each patch with the output voxels written and those wanted.
        remaining: the output not written yet.
        stopwatch: learns where the time goes.
    """

    def read(tile: Tile) -> Block:
        with stopwatch.during("reading"):
            return blocks.read(tile)

    def begin(block: Block) -> Finish:
        if block.finished:
            return lambda: block.values
        with stopwatch.during("computing"):
            return runner.begin(block.values)

    def write(tile: Tile, finished: Future[NDArray[Any]]) -> None:
        dense = finished.result()
        with stopwatch.during("writing"):
            wanted = dense[:, *tile.written_in_patch.slices]
            output.write(tile.written, convert(wanted, dtype))
        remaining.take_off(tile.written)
        progress(job.output.volume - remaining.voxels, job.output.volume)

    _in_step(list(remaining.tiles(runner.plan.patch)), read, begin, write, stopwatch)


def _in_step(
    todo: Sequence[Tile],
    read: Callable[[Tile], Block],
    begin: Callable[[Block], Finish],
    write: Callable[[Tile, Future[NDArray[Any]]], None],
    stopwatch: Stopwatch,
) -> None:
    def result_of(task: Future[T]) -> T:
        with stopwatch.during("waiting"):
            return task.result()

    def done(finished: Future[NDArray[Any]], written: Future[None]) -> None:
        with stopwatch.during("computing"):  # on a GPU; the host has done it
            finished.result()
        result_of(written)

    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        upcoming = reader.submit(read, todo[0])
        writing: tuple[Future[NDArray[Any]], Future[None]] | None = None
        for index, tile in enumerate(todo):
            block = result_of(upcoming)
            if index + 1 < len(todo):
                upcoming = reader.submit(read, todo[index + 1])
            finish = begin(block)
            if writing:
                done(*writing)
            finished = writer.submit(finish)
            writing = finished, writer.submit(write, tile, finished)
        if writing:
            done(*writing)


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
