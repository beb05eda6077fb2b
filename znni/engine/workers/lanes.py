"""A volume through workers: each of their slots is a lane, for one patch after the other.

A thread goes with each lane. It reads a block into its slot, waits for the worker, and writes the
result. So while a worker computes the patch of one slot, others of its are read and written.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock, Thread
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from znni.engine.pipeline import RunState
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Tile
from znni.engine.workers.worker import Worker, end_all
from znni.network.weights import Float32
from znni.plans.plan import Plan


class Lanes:
    """What is left of a job, on its way through workers.

    One block at a time is read for each worker, and one written.

    Args:
        plan: what they run.
        state: what is left of the job.

    Attributes:
        reading: seconds that blocks took to read, of all workers together.
        writing: seconds that blocks took to write.
    """

    def __init__(self, plan: Plan, state: RunState) -> None:
        self._state = state
        self._todo = iter(list(state.remaining.tiles(plan.patch)))
        self._taking, self._storing = Lock(), Lock()
        self._errors: list[BaseException] = []
        self.reading = 0.0
        self.writing = 0.0

    def run(self, workers: Sequence[Worker], stopwatch: Stopwatch) -> None:
        """Take all patches through; the first are read while workers still get ready.

        What fails ends the run: patches that others are at are computed and written, and then it
        is raised here. Of several errors the first is, unless a signal came.

        Args:
            workers: which compute them.
            stopwatch: learns how long they got ready, and how long they ran.
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
            with stopwatch.during("building"):
                for worker in workers:
                    worker.wait_until_ready()
            with stopwatch.during("running"):
                _wait_for(threads)
        except Exception as error:  # what keeps a worker from getting ready
            self._errors.append(error)  # before those of lanes whose worker is ended
            _end(workers, threads)
        except BaseException:  # a signal
            _end(workers, threads)
            raise
        if self._errors:
            raise self._errors[0]

    def _go(self, worker: Worker, slot: int, reading: Lock) -> None:
        try:
            while tile := self._next():
                with reading:
                    known = self._read(tile, worker.slots[slot].block)
                if known is None:
                    worker.compute(slot)
                self._write(tile, worker.slots[slot].dense if known is None else known)
        except BaseException as error:
            self._errors.append(error)

    def _next(self) -> Tile | None:
        with self._taking:
            return None if self._errors else next(self._todo, None)

    def _read(self, tile: Tile, block: Float32) -> Float32 | None:
        """Bring what is to be computed, or return the output where that is known."""
        begun = perf_counter()
        found = self._state.blocks.read(tile, block)
        with self._taking:
            self.reading += perf_counter() - begun
        return found.values if found.finished else None

    def _write(self, tile: Tile, dense: NDArray[Any]) -> None:
        with self._storing:
            begun = perf_counter()
            self._state.write(tile, dense)
            self.writing += perf_counter() - begun
            self._state.note_written(tile)


def _end(workers: Sequence[Worker], threads: Sequence[Thread]) -> None:
    end_all(workers)
    _wait_for(threads)


def _wait_for(threads: Sequence[Thread]) -> None:
    for thread in threads:
        thread.join()
