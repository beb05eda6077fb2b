"""A volume through workers: each of their slots is a lane, for one patch after the other.

A thread goes with each lane. It reads a block into its slot, waits for the worker, and writes the
result. So while a worker computes the patch of one slot, others of its are read and written.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock, Thread
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.engine.pipeline import Progress
from znni.engine.remaining import Remaining
from znni.engine.tiles import Job, Tile, read_input
from znni.engine.workers.worker import Worker
from znni.plans import Plan
from znni.volume import Output, Volume
from znni.weights import Float32


class Lanes:
    """What is left of a job, on its way through workers.

    One block at a time is read for each worker, and one written.

    Args:
        plan: what they run.
        volume: the input.
        job: which output is wanted.
        output: takes the results, of the type that slots have.
        progress: called after each patch with the output voxels written and those wanted.
        remaining: the output not written yet.

    Attributes:
        reading: seconds that blocks took to read, of all workers together.
        writing: seconds that blocks took to write.
    """

    def __init__(
        self,
        plan: Plan,
        volume: Volume,
        job: Job,
        output: Output,
        progress: Progress,
        remaining: Remaining,
    ) -> None:
        self._network = plan.network
        self._volume = volume
        self._job = job
        self._output = output
        self._progress = progress
        self._remaining = remaining
        self._todo = iter(list(remaining.tiles(plan.patch)))
        self._taking, self._storing = Lock(), Lock()
        self._errors: list[BaseException] = []
        self.reading = 0.0
        self.writing = 0.0

    def run(self, workers: Sequence[Worker]) -> None:
        """Take all patches through.

        What fails ends the run: patches that others are at are computed and written, and then it
        is raised here. Of several errors the first is.
        """
        threads = [
            Thread(target=self._go, args=(worker, slot, reading))
            for worker in workers
            for reading in [Lock()]
            for slot in range(len(worker.slots))
        ]
        for thread in threads:
            thread.start()
        try:
            _wait_for(threads)
        except BaseException:  # a signal
            for worker in workers:
                worker.end()
            _wait_for(threads)
            raise
        if self._errors:
            raise self._errors[0]

    def _go(self, worker: Worker, slot: int, reading: Lock) -> None:
        try:
            while tile := self._next():
                with reading:
                    self._read(tile, worker.slots[slot].block)
                worker.compute(slot)
                self._write(tile, worker.slots[slot].dense)
        except BaseException as error:
            self._errors.append(error)

    def _next(self) -> Tile | None:
        with self._taking:
            return None if self._errors else next(self._todo, None)

    def _read(self, tile: Tile, block: Float32) -> None:
        begun = perf_counter()
        view, scaling = self._network.field_of_view, self._network.scaling
        np.copyto(block, read_input(self._volume, self._job, tile, view, scaling))
        with self._taking:
            self.reading += perf_counter() - begun

    def _write(self, tile: Tile, dense: NDArray[Any]) -> None:
        with self._storing:
            begun = perf_counter()
            self._output.write(tile.written, dense[:, *tile.written_in_patch.slices])
            self.writing += perf_counter() - begun
            self._remaining.take_off(tile.written)
            total = self._job.output.volume
            self._progress(total - self._remaining.voxels, total)


def _wait_for(threads: Sequence[Thread]) -> None:
    for thread in threads:
        thread.join()
