"""The process that hands blocks to workers, and keeps the ledger of the output."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from znni.cluster.calls import Account, Answered, Compute, EngineGone, MakePlan
from znni.cluster.schedule import Schedule
from znni.cluster.workers import LOOK_EVERY, Engine, Tally, Workers
from znni.core.errors import RunFailed, UnusableValues
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Bits
from znni.core.shapes import Box
from znni.core.text import counted
from znni.engine.tile_grid import TileGrid
from znni.plans.plan import Plan

log = logging.getLogger("znni")

ACCOUNT_SECONDS = 10.0  # how long to wait for what the workers measured


class Record(Protocol):
    """An account of the blocks of an output (``SharedOutput``)."""

    def note(self, entry: Mapping[str, Any], /) -> None:
        """Note that a block is written."""

    def checksum(self, box: Box, /) -> str | None:
        """Return the checksum of a block as it is read now; None if it cannot be read."""

    def strike_off(self, box: Box, /) -> None:
        """Note that a block is not as it was written."""


class Coordinator:
    """Hands blocks to workers until all are computed.

    Args:
        engine: carries calls to the workers.
        bits: ``same`` if all workers have to compute the same bits; ``class`` if results of the
            same accuracy class do.
        clock: seconds since some moment.
    """

    def __init__(
        self, engine: Engine, bits: Bits = "same", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._bits = bits
        self._clock = clock
        self._workers = Workers(engine, bits, clock)
        self._grid: TileGrid
        self._output: Record
        self._checksums: NDArray[np.uint32]
        self._read_again: set[int] = set()

    @property
    def tally(self) -> Tally:
        """The numbers of events among the workers."""
        return self._workers.tally

    def make_plan(self, given: Plan | None = None) -> str:
        """Have the first worker make the plan, or check a given one, and return it as JSON.

        Raises:
            ZnniError: the first worker cannot make one, or cannot run the given one.
        """
        workers = self._workers
        while True:
            workers.look()
            searching = any(isinstance(each.question, MakePlan) for each in workers.values())
            if not searching and (first := workers.described()):
                workers.ask(first, MakePlan(given, self._engine.wanted or len(workers)))
            for came in self._engine.completed(LOOK_EVERY):
                if not isinstance(came.call, MakePlan):
                    self._take(came)
                elif workers.answered(came):
                    if came.answer.error:
                        raise came.answer.error
                    workers.follow(came.worker)
                    plan: str = came.answer.value
                    return plan

    def compute(
        self,
        plan: str,
        grid: TileGrid,
        finished: NDArray[np.bool_],
        probe: Box | None,
        output: Record,
        progress: Callable[[int, int, str], None],
    ) -> None:
        """Have the workers compute all blocks that are not finished.

        Args:
            plan: the plan that all follow, as JSON.
            grid: the blocks.
            finished: which blocks are finished.
            probe: a finished block that every worker computes again first; None: there is none.
            output: keeps the ledger.
            progress: called with the blocks done, those wanted, and the state of the workers.

        Raises:
            RunFailed: a block failed too often, or no worker is left.
            ZnniError: the input, the network or an option cannot be used.
        """
        workers, schedule = self._workers, Schedule(finished, column=grid.column)
        self._grid, self._output = grid, output
        self._checksums = np.zeros(finished.size, np.uint32)
        workers.begin(plan, probe, schedule, rounds=grid.swept is not None)
        done, total = int(finished.sum()), len(finished)
        progress(done, total, "")
        while schedule.left or schedule.in_hand:
            workers.look()
            self._hand_out(schedule)
            for came in self._engine.completed(LOOK_EVERY / 4):
                number = self._take(came)
                if number is None:
                    continue
                done += 1
                progress(done, total, str(self.tally))
                if workers.probe is None:
                    workers.probe = grid.tile(number).written
            if not (schedule.left or schedule.in_hand):
                done -= self._look_at_rewritten(schedule)
        if schedule.quarantined:
            first = grid.tile(schedule.quarantined[0]).written
            raise RunFailed(
                f"{counted(len(schedule.quarantined), 'block')} failed too often, the first at "
                f"{first}: {workers.last_error}"
            ) from workers.last_error

    def collect_accounts(self) -> None:
        """Ask the workers what they measured, and wait a while for the answers."""
        asked = {address for address, worker in self._workers.items() if worker.ready}
        for address in asked:
            self._engine.submit(address, Account())
        end = self._clock() + ACCOUNT_SECONDS
        while asked and self._clock() < end:
            for came in self._engine.completed(LOOK_EVERY / 4):
                if isinstance(came.call, Account):
                    asked.discard(came.worker)
                    if came.answer.value:
                        self.tally.runs.append(came.answer.value)
            asked &= set(self._engine.workers())

    def _hand_out(self, schedule: Schedule) -> None:
        """Hand blocks to the workers that are ready, and take back those that are overdue."""
        workers = self._workers
        workers.admit()
        now = self._clock()
        for address, worker in workers.items():
            if not worker.ready or (workers.probe is None and schedule.in_hand):
                continue  # the first block is what all others are compared by
            while (number := schedule.next_for(address, now)) is not None:
                self._engine.submit(address, Compute(self._grid.tile(number)))
                if workers.probe is None:
                    break
        for address in {late for late, _ in schedule.overdue(now)}:
            blocks = counted(len(schedule.leave(address)), "block")
            workers.start_again(
                address, RunFailed(f"it did not answer for {blocks}, which others get")
            )

    def _take(self, came: Answered) -> int | None:
        """Take an answer. Return the number of the block if one is finished by it."""
        if came.answer.where:
            log.info("%s: %s", self._name(came.worker), came.answer.where)
        if isinstance(came.call, Compute):
            return self._take_block(came, came.call.tile.written)
        self._workers.take(came)
        return None

    def _take_block(self, came: Answered, box: Box) -> int | None:
        worker, answer = self._workers.get(came.worker), came.answer
        workers, schedule = self._workers, self._workers.schedule
        number = self._grid.number(box)
        assert number is not None
        if answer.error is None:
            entry = dict(answer.value)
            if self._bits == "class" and worker and worker.machinery:
                entry["by"] = worker.machinery.machine
            self._output.note(entry)
            self._checksums[number] = int(answer.value["checksum"], 16)
            if worker:
                worker.failures = 0
            return number if schedule.done(came.worker, number, self._clock()) else None
        if isinstance(answer.error, UnusableValues | DoesNotFit):
            raise answer.error
        given = schedule.failed(came.worker, number)
        if given is None:  # it was taken back, which was counted then
            return None
        if workers.last_error is None or not isinstance(answer.error, EngineGone):
            workers.last_error = answer.error
        self.tally.failures += 1
        log.warning("block %s failed on worker %s: %s", box, self._name(came.worker), answer.error)
        if worker and not worker.refused and given > worker.failed:
            workers.failed(came.worker, answer.error)
        return None

    def _name(self, address: str) -> str:
        worker = self._workers.get(address)
        return worker.name if worker else address

    def _look_at_rewritten(self, schedule: Schedule) -> int:
        """Read blocks again that several workers may have written; return how many are damaged."""
        damaged = 0
        for number in schedule.rewritten:
            if number in self._read_again:
                continue
            box = self._grid.tile(number).written
            if self._output.checksum(box) == f"{self._checksums[number]:08x}":
                self._read_again.add(number)
                continue
            log.warning("block %s is not as it was written, and is computed again", box)
            self._output.strike_off(box)
            schedule.reopen(number)
            damaged += 1
        return damaged
