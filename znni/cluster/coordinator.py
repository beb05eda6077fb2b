"""The process that hands blocks to workers, and keeps the ledger of the output."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from znni.cluster.calls import (
    Account,
    Answer,
    Call,
    Compute,
    Describe,
    Description,
    EngineGone,
    GetReady,
    Machinery,
    MakePlan,
    Probe,
    Probed,
    Restart,
)
from znni.cluster.cluster_file import WALLTIME_MARGIN
from znni.cluster.schedule import FIRST_BLOCK, Schedule
from znni.core.errors import DoesNotFit, InvalidInput, RunFailed, UnusableValues
from znni.core.options import Bits
from znni.core.shapes import Box
from znni.core.text import counted, duration
from znni.engine.tiles import TileGrid
from znni.plans.plan import Plan

log = logging.getLogger("znni")

LOOK_EVERY = 1.0  # seconds between looks at which workers are there
REPLACE_EVERY = 5.0  # seconds between requests for workers that are missing
TELL_AFTER = 5.0  # seconds without a worker until the first message that none is there
TELL_EVERY = 60.0  # seconds between such messages
FAILURES = 3  # failures in a row that shut a worker out
ACCOUNT_SECONDS = 10.0  # how long to wait for what the workers measured


class Engine(Protocol):
    """An engine that carries calls to workers, and answers back."""

    @property
    def wanted(self) -> int:
        """The number of workers wanted; 0 for whoever comes."""

    def workers(self) -> Mapping[str, str]:
        """Return the names of the workers that are there, by address."""

    def replace_lost(self) -> None:
        """Have workers that are gone started again, if that is possible."""

    def submit(self, worker: str, call: Call) -> None:
        """Hand a call to a worker."""

    def completed(self, timeout: float) -> Iterable[Answered]:
        """Yield the answers that have come; wait for the first one, for ``timeout`` seconds."""


class Record(Protocol):
    """An account of the blocks of an output (``SharedOutput``)."""

    def note(self, entry: Mapping[str, Any], /) -> None:
        """Note that a block is written."""

    def checksum(self, box: Box, /) -> str | None:
        """Return the checksum of a block as it is read now; None if it cannot be read."""

    def strike_off(self, box: Box, /) -> None:
        """Note that a block is not as it was written."""


class Answered(Protocol):
    """An answer that came."""

    @property
    def worker(self) -> str:
        """The worker's address."""

    @property
    def call(self) -> Call:
        """The call that is answered."""

    @property
    def answer(self) -> Answer:
        """The answer."""


@dataclass
class _Worker:
    """A worker that is there.

    Attributes:
        name: for messages.
        prepared: whether it can compute, and has to compute the first finished block again.
        ready: whether it gets blocks.
        refused: whether it gets none any more.
        failures: how often in a row it has failed. Blocks that it had in hand at the same time
            count once: the end of its process fails all of them.
        failed: when that was noted last.
        error: its last error, if it has said more than that its process has ended.
        seconds: predicted for a block; None: unknown.
        machinery: what its results depend on.
        until: when its machine is taken away, in seconds since 1970; None: never.
    """

    name: str
    prepared: bool = False
    ready: bool = False
    refused: bool = False
    failures: int = 0
    failed: float = -np.inf
    error: BaseException | None = None
    seconds: float | None = None
    machinery: Machinery | None = None
    until: float | None = None


@dataclass
class Tally:
    """The numbers of events among the workers.

    Attributes:
        most: the most workers that computed at the same time.
        lost: how many were lost.
        failures: how many blocks failed.
        refused: how many workers were shut out.
        runs: what the workers measured.
    """

    most: int = 0
    lost: int = 0
    failures: int = 0
    refused: int = 0
    runs: list[Mapping[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        """Return this in words."""
        said = [counted(self.most, "worker")]
        for number, what in ((self.lost, "lost"), (self.refused, "shut out")):
            if number:
                said.append(f"{number} {what}")
        if self.failures:
            said.append(f"{counted(self.failures, 'block')} failed and repeated")
        return ", ".join(said)


class Coordinator:
    """Hands blocks to workers until all are computed.

    Args:
        engine: carries calls to the workers.
        bits: ``same`` if all workers have to compute the same bits; ``class`` if results of the
            same accuracy class do.
        clock: seconds since some moment.

    Attributes:
        tally: what happened to the workers.
    """

    def __init__(
        self, engine: Engine, bits: Bits = "same", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tally = Tally()
        self._engine = engine
        self._bits = bits
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._looked = self._asked = -np.inf
        self._told = clock() - TELL_EVERY + TELL_AFTER
        self._last_error: BaseException | None = None
        self._reference: Machinery | None = None
        self._plan = ""
        self._schedule: Schedule | None = None
        self._grid: TileGrid
        self._probe: Box | None = None
        self._checksums: NDArray[np.uint32]
        self._read_again: set[int] = set()

    def make_plan(self, given: Plan | None = None) -> str:
        """Have the first worker make the plan, and return it as JSON.

        Args:
            given: a plan made earlier, which the worker checks instead.

        Raises:
            ZnniError: the first worker cannot make one, or cannot run the given one.
        """
        asked = ""
        while True:
            self._look()
            if not asked or asked not in self._workers:
                described = (a for a, worker in self._workers.items() if worker.machinery)
                if asked := next(described, ""):
                    workers = self._engine.wanted or len(self._workers)
                    self._engine.submit(asked, MakePlan(given, workers))
            for came in self._engine.completed(LOOK_EVERY):
                if not isinstance(came.call, MakePlan):
                    self._take(came)
                elif self._asked_again(came):
                    continue
                elif came.answer.error:
                    raise came.answer.error
                elif came.worker in self._workers:
                    self._reference = self._workers[came.worker].machinery
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
        self._plan, self._grid, self._probe = plan, grid, probe
        schedule = self._schedule = Schedule(finished)
        self._checksums = np.zeros(finished.size, np.uint32)
        for address, worker in self._workers.items():
            if worker.machinery:
                self._welcome(address, worker)
        done, total = int(finished.sum()), len(finished)
        progress(done, total, "")
        while schedule.left or schedule.in_hand:
            self._look()
            self._hand_out(schedule)
            for came in self._engine.completed(LOOK_EVERY / 4):
                number = self._take(came, output)
                if number is None:
                    continue
                done += 1
                progress(done, total, str(self.tally))
                if self._probe is None:
                    self._probe = self._grid.tile(number).written
            if not (schedule.left or schedule.in_hand):
                done -= self._look_at_rewritten(schedule, output)
        if schedule.quarantined:
            first = self._grid.tile(schedule.quarantined[0]).written
            raise RunFailed(
                f"{counted(len(schedule.quarantined), 'block')} failed too often, the first at "
                f"{first}: {self._last_error}"
            ) from self._last_error

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

    def _look(self) -> None:
        """Note which workers have come or gone, and have those that are missing started again.

        Raises:
            RunFailed: the scheduler is gone.
            ZnniError: every worker is shut out; this is the last one's error.
        """
        now = self._clock()
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        there = self._engine.workers()
        for address in set(self._workers) - set(there):
            self._lost(address)
        for address, name in there.items():
            if address not in self._workers:
                self._workers[address] = _Worker(name)
                self._engine.submit(address, Describe())
        able = [worker for worker in self._workers.values() if not worker.refused]
        wanted = self._engine.wanted
        if not able and self._workers and len(self._workers) >= max(1, wanted):
            assert self._last_error is not None
            self._last_error.add_note("no worker is left that can compute")
            raise self._last_error
        if len(there) < wanted and now - self._asked > REPLACE_EVERY:
            self._asked = now
            self._engine.replace_lost()
        if not there and now - self._told > TELL_EVERY:
            log.warning("no worker is there; waiting for %s", counted(wanted or 1, "worker"))
            self._told = now

    def _lost(self, address: str) -> None:
        worker = self._workers.pop(address)
        blocks = self._schedule.leave(address) if self._schedule else []
        if not worker.refused:
            self.tally.lost += 1
            log.warning("worker %s is lost, with %s", worker.name, counted(len(blocks), "block"))

    def _hand_out(self, schedule: Schedule) -> None:
        """Hand blocks to the workers that are ready, and take back those that are overdue."""
        self._admit(schedule)
        now = self._clock()
        for address, worker in self._workers.items():
            if not worker.ready or (self._probe is None and schedule.in_hand):
                continue  # the first block is what all others are compared by
            while (number := schedule.next_for(address, now)) is not None:
                self._engine.submit(address, Compute(self._grid.tile(number)))
                if self._probe is None:
                    break
        for address in {late for late, _ in schedule.overdue(now)}:
            self._start_again(address, self._workers[address], schedule)

    def _start_again(self, address: str, worker: _Worker, schedule: Schedule) -> None:
        """Take a worker's blocks back, and have its process ended. Another one will start."""
        blocks = schedule.leave(address)
        worker.ready = False
        log.warning(
            "worker %s does not answer: others get its %s, and its process is started again",
            worker.name,
            counted(len(blocks), "block"),
        )
        error = RunFailed(f"it did not answer for {counted(len(blocks), 'block')}")
        if not self._failed(address, worker, error):
            self._engine.submit(address, Restart())

    def _take(self, came: Answered, output: Record | None = None) -> int | None:
        """Take an answer. Return the number of the block if one is finished by it.

        Raises:
            ZnniError: the input, the network or an option cannot be used by any worker.
        """
        worker, call, answer = self._workers.get(came.worker), came.call, came.answer
        if answer.where:
            log.info("%s: %s", worker.name if worker else came.worker, answer.where)
        if isinstance(call, Compute):
            return self._take_block(came, worker, output)
        if worker is None or worker.refused:
            return None
        if self._asked_again(came):
            return None
        if answer.error:
            self._shut_out(came.worker, worker, answer.error)
        elif isinstance(call, Describe):
            self._take_description(came.worker, worker, answer.value)
        elif isinstance(call, GetReady):
            self._take_readiness(came.worker, worker, answer.value)
        elif isinstance(call, Probe):
            self._take_probe(came.worker, worker, answer.value)
        elif isinstance(call, Restart):
            self._welcome(came.worker, worker)
        return None

    def _asked_again(self, came: Answered) -> bool:
        """Return whether a call was handed out again, because its process has ended."""
        worker = self._workers.get(came.worker)
        if worker is None or not isinstance(came.answer.error, EngineGone):
            return False
        worker.failures += 1
        if worker.failures == FAILURES:
            return False
        log.warning("%s; worker %s starts another", came.answer.error, worker.name)
        self._engine.submit(came.worker, came.call)
        return True

    def _take_description(self, address: str, worker: _Worker, found: Description) -> None:
        worker.name = f"{worker.name} on {found.host}"
        worker.machinery, worker.until = found.machinery, found.until
        if self._plan:
            self._welcome(address, worker)

    def _welcome(self, address: str, worker: _Worker) -> None:
        """Have a worker get ready, if it may compute beside the others."""
        if self._may_compute(address, worker):
            self._engine.submit(address, GetReady(self._plan, self._bits))

    def _may_compute(self, address: str, worker: _Worker) -> bool:
        """Return whether a worker may compute beside the others. If not, it is shut out.

        The first worker whose values are those of the output is what the others are compared with.
        """
        mine, other = worker.machinery, self._reference
        assert mine is not None
        if other is None or mine == other:
            return True
        if self._bits == "class" and mine.version == other.version:
            return True
        libraries = [
            f"{name} {mine.libraries.get(name, 'missing')}, not {other.libraries.get(name, 'none')}"
            for name in sorted({*mine.libraries, *other.libraries})
            if mine.libraries.get(name) != other.libraries.get(name)
        ]
        machine = [f"{mine.machine}, not {other.machine}"] * (mine.machine != other.machine)
        differing = "; ".join([*machine, *libraries])
        error = InvalidInput(f"it does not compute the same bits as the others: {differing}")
        self._shut_out(address, worker, error)
        return False

    def _take_readiness(self, address: str, worker: _Worker, seconds: float) -> None:
        left = self._until(worker) - self._clock()
        if FIRST_BLOCK * seconds <= left:
            worker.prepared, worker.seconds = True, seconds
            return
        error = InvalidInput(
            f"a block takes it up to {duration(FIRST_BLOCK * seconds)}, and its machine is taken "
            f"away in {duration(left + WALLTIME_MARGIN)}, of which the last "
            f"{duration(WALLTIME_MARGIN)} are not used; give more walltime, or a plan of smaller "
            f"patches"
        )
        self._shut_out(address, worker, error)

    def _until(self, worker: _Worker) -> float:
        """Return the time until which a worker may compute."""
        if worker.until is None:
            return np.inf
        return self._clock() + worker.until - time.time() - WALLTIME_MARGIN

    def _admit(self, schedule: Schedule) -> None:
        """Have workers that are prepared compute blocks, or first the one that all compute."""
        for address, worker in self._workers.items():
            if worker.prepared and self._probe is not None:
                worker.prepared = False
                self._engine.submit(address, Probe(self._probe))
            elif worker.prepared and not any(other.ready for other in self._workers.values()):
                worker.prepared = False
                self._begin(address, worker, schedule)

    def _begin(self, address: str, worker: _Worker, schedule: Schedule) -> None:
        if not self._may_compute(address, worker):
            return
        self._reference = self._reference or worker.machinery
        schedule.join(address, until=self._until(worker), seconds=worker.seconds)
        worker.ready = True
        self.tally.most = max(self.tally.most, sum(w.ready for w in self._workers.values()))

    def _take_probe(self, address: str, worker: _Worker, found: Probed) -> None:
        if found.same or (self._bits == "class" and found.apart <= found.allowed):
            assert self._schedule is not None
            self._begin(address, worker, self._schedule)
            return
        self._shut_out(
            address, worker,
            RunFailed(
                f"its values in {self._probe} differ from the output's, by {found.apart:.1g} of "
                f"the largest"
            ),
        )  # fmt: skip

    def _take_block(
        self, came: Answered, worker: _Worker | None, output: Record | None
    ) -> int | None:
        assert isinstance(came.call, Compute)
        assert self._schedule is not None
        assert output is not None
        answer, schedule = came.answer, self._schedule
        number = self._grid.number(came.call.tile.written)
        assert number is not None
        if answer.error is None:
            entry = dict(answer.value)
            if self._bits == "class" and worker and worker.machinery:
                entry["by"] = worker.machinery.machine
            output.note(entry)
            self._checksums[number] = int(answer.value["checksum"], 16)
            if worker:
                worker.failures = 0
            return number if schedule.done(came.worker, number, self._clock()) else None
        if isinstance(answer.error, UnusableValues | DoesNotFit):
            raise answer.error
        given = schedule.failed(came.worker, number)
        if given is None:  # it was taken back, which was counted then
            return None
        if self._last_error is None or not isinstance(answer.error, EngineGone):
            self._last_error = answer.error
        self.tally.failures += 1
        log.warning(
            "block %s failed on worker %s: %s",
            came.call.tile.written,
            worker.name if worker else came.worker,
            answer.error,
        )
        if worker and not worker.refused and given > worker.failed:
            self._failed(came.worker, worker, answer.error)
        return None

    def _failed(self, address: str, worker: _Worker, error: BaseException) -> bool:
        """Count a worker's failure, and return whether it is shut out by it."""
        worker.failures, worker.failed = worker.failures + 1, self._clock()
        if worker.error is None or not isinstance(error, EngineGone):
            worker.error = error
        if worker.failures >= FAILURES:
            self._shut_out(address, worker, worker.error)
        return worker.refused

    def _shut_out(self, address: str, worker: _Worker, error: BaseException) -> None:
        """Give a worker no more blocks."""
        worker.refused, worker.ready = True, False
        self._last_error = error
        self.tally.refused += 1
        if self._schedule:
            self._schedule.leave(address)
        log.error("worker %s is shut out: %s", worker.name, error)

    def _look_at_rewritten(self, schedule: Schedule, output: Record) -> int:
        """Read blocks again that several workers may have written; return how many are damaged."""
        damaged = 0
        for number in schedule.rewritten:
            if number in self._read_again:
                continue
            box = self._grid.tile(number).written
            if output.checksum(box) == f"{self._checksums[number]:08x}":
                self._read_again.add(number)
                continue
            log.warning("block %s is not as it was written, and is computed again", box)
            output.strike_off(box)
            schedule.reopen(number)
            damaged += 1
        return damaged
