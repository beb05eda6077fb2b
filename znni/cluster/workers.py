"""The workers of a cluster, from their arrival to their loss: who may compute.

A worker is asked what it is, gets ready, and computes a finished block again. It gets blocks if its
values are those of the output. The first worker is what the others are compared with.

Dask says that a worker is lost, after ``LOST_SECONDS`` (``dask_engine.py``). ``schedule.py`` says
that a worker hangs, after ``OVERDUE_SECONDS`` or more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from znni.cluster.calls import (
    Answered,
    Call,
    Describe,
    Description,
    EngineGone,
    GetReady,
    Machinery,
    Probe,
    Probed,
    Restart,
)
from znni.cluster.cluster_file import WALLTIME_MARGIN
from znni.cluster.schedule import FIRST_BLOCK, OVERDUE_TIMES, Schedule
from znni.core.errors import InvalidInput, RunFailed
from znni.core.option_types import Bits
from znni.core.shapes import Box
from znni.core.text import counted, duration

log = logging.getLogger("znni")

LOOK_EVERY = 1.0  # seconds between looks at which workers are there
REPLACE_EVERY = 5.0  # seconds between requests for workers that are missing
TELL_AFTER = 5.0  # seconds without a worker until the first message that none is there
TELL_EVERY = 60.0  # seconds between such messages
QUESTION_SECONDS = 1800.0  # to answer a call that is not for a block; a search takes minutes
FAILURES = 3  # failures in a row that shut a worker out


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


@dataclass
class Worker:
    """A worker that is there.

    Attributes:
        name: for messages.
        question: the call about the worker itself that it has not answered; None: there is none.
        asked: when it got that call.
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
    question: Call | None = None
    asked: float = -np.inf
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


class Workers(dict[str, Worker]):
    """The workers that are there, by address.

    Args:
        engine: carries calls to them.
        bits: ``same`` if all have to compute the same bits; ``class`` if results of the same
            accuracy class do.
        clock: seconds since some moment.

    Attributes:
        tally: what happened to them.
        plan: the plan that all follow, as JSON; empty until there is one.
        probe: a finished block that each of them computes again first; None: there is none.
        schedule: hands out blocks to those that may compute; it has none until there is a plan.
        last_error: the last error of a worker.
    """

    def __init__(self, engine: Engine, bits: Bits, clock: Callable[[], float]) -> None:
        self.tally = Tally()
        self.plan = ""
        self.probe: Box | None = None
        self.schedule = Schedule(np.zeros(0, bool))
        self.last_error: BaseException | None = None
        self._engine = engine
        self._bits = bits
        self._rounds = False
        self._clock = clock
        self._looked = self._asked = -np.inf
        self._told = clock() - TELL_EVERY + TELL_AFTER
        self._reference: Machinery | None = None

    def look(self) -> None:
        """Note which workers have come or gone, and have those that are missing started again."""
        now = self._clock()
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        there = self._engine.workers()
        for address in set(self) - set(there):
            self._lost(address)
        for address, name in there.items():
            if address not in self:
                self[address] = Worker(name)
                self.ask(address, Describe())
        for address, worker in self.items():
            self._check_question(address, worker, now)
        wanted = self._engine.wanted
        if self and len(self) >= max(1, wanted) and all(each.refused for each in self.values()):
            assert self.last_error is not None
            self.last_error.add_note("no worker is left that can compute")
            raise self.last_error
        if len(there) < wanted and now - self._asked > REPLACE_EVERY:
            self._asked = now
            self._engine.replace_lost()
        if all(each.refused for each in self.values()) and now - self._told > TELL_EVERY:
            more = counted(max(1, wanted - len(self)), "worker")
            log.warning(
                "no worker is there%s; waiting for %s", " that can compute" * bool(self), more
            )
            self._told = now

    def _lost(self, address: str) -> None:
        worker, blocks = self.pop(address), self.schedule.leave(address)
        if not worker.refused:
            self.tally.lost += 1
            log.warning("worker %s is lost, with %s", worker.name, counted(len(blocks), "block"))

    def ask(self, address: str, call: Call) -> None:
        """Send a worker a call about itself. It gets no other such call until it answers."""
        worker = self[address]
        worker.question, worker.asked = call, self._clock()
        self._engine.submit(address, call)

    def _check_question(self, address: str, worker: Worker, now: float) -> None:
        """Have a worker's process started again, if it has not answered in time."""
        limit = max(QUESTION_SECONDS, OVERDUE_TIMES * (worker.seconds or 0))
        if worker.question and not worker.refused and now - worker.asked > limit:
            what = type(worker.question).__name__
            self.start_again(address, RunFailed(f"it did not answer {what} for {duration(limit)}"))

    def start_again(self, address: str, error: BaseException) -> None:
        """Count a failure, and have a worker's process ended. Another one will start."""
        worker = self[address]
        worker.ready = False
        log.warning(
            "worker %s does not answer, and its process is started again: %s", worker.name, error
        )
        if not self.failed(address, error):
            self.ask(address, Restart())

    def described(self) -> str:
        """Return the address of a worker that has described its machine; empty if none has."""
        known = (a for a, worker in self.items() if worker.machinery and not worker.question)
        return next(known, "")

    def follow(self, address: str) -> None:
        """Compare the others with a worker, which has made the plan."""
        self._reference = self[address].machinery

    def begin(
        self, plan: str, probe: Box | None, schedule: Schedule, *, rounds: bool = False
    ) -> None:
        """Prepare the workers for a plan, so that they get the blocks of a schedule.

        Args:
            plan: the plan, as JSON.
            probe: a finished block; None: there is none.
            schedule: decides which worker gets which block.
            rounds: whether the last digits of a block depend on the block before. They may in a
                sweep, where workers begin at different blocks.
        """
        self.plan, self.probe, self.schedule = plan, probe, schedule
        self._rounds = rounds or self._bits == "class"
        for address, worker in self.items():
            if worker.machinery and not worker.question:
                self._welcome(address, worker)

    def take(self, came: Answered) -> None:
        """Take the answer to a call about the worker itself."""
        worker, value = self.get(came.worker), came.answer.value
        if not self.answered(came):
            return
        assert worker is not None
        if came.answer.error:
            self.shut_out(came.worker, came.answer.error)
        elif isinstance(value, Description):
            worker.name = f"{worker.name} on {value.host}"
            worker.machinery, worker.until = value.machinery, value.until
            self._welcome(came.worker, worker)
        elif isinstance(came.call, GetReady):
            self._take_readiness(came.worker, worker, value)
        elif isinstance(value, Probed):
            self._take_probe(came.worker, worker, value)
        elif worker.machinery:  # its process was started again
            self._welcome(came.worker, worker)
        else:
            self.ask(came.worker, Describe())

    def answered(self, came: Answered) -> bool:
        """Note an answer, and return whether it can be used.

        A late answer cannot, nor one of a process that has ended. In these cases the worker is
        asked again.
        """
        worker = self.get(came.worker)
        if worker is None or worker.refused or worker.question is not came.call:
            return False
        worker.question = None
        if not isinstance(came.answer.error, EngineGone):
            return True
        worker.failures += 1
        if worker.failures == FAILURES:
            return True
        log.warning("%s; worker %s starts another", came.answer.error, worker.name)
        self.ask(came.worker, came.call)
        return False

    def admit(self) -> None:
        """Have workers that are prepared compute blocks, or first the one that all compute."""
        for address, worker in self.items():
            if worker.prepared and self.probe is not None:
                worker.prepared = False
                self.ask(address, Probe(self.probe))
            elif worker.prepared and not any(other.ready for other in self.values()):
                worker.prepared = False
                self._let_in(address, worker)

    def failed(self, address: str, error: BaseException) -> bool:
        """Count a worker's failure, and return whether it is shut out by it."""
        worker = self[address]
        worker.failures, worker.failed = worker.failures + 1, self._clock()
        if worker.error is None or not isinstance(error, EngineGone):
            worker.error = error
        if worker.failures >= FAILURES:
            self.shut_out(address, worker.error)
        return worker.refused

    def shut_out(self, address: str, error: BaseException) -> None:
        """Give a worker no more blocks."""
        worker = self[address]
        worker.refused, worker.ready = True, False
        self.last_error = error
        self.tally.refused += 1
        self.schedule.leave(address)
        log.error("worker %s is shut out: %s", worker.name, error)

    def _welcome(self, address: str, worker: Worker) -> None:
        """Prepare a worker, if there is a plan and it may compute beside the others."""
        if self.plan and self._may_compute(address, worker):
            self.ask(address, GetReady(self.plan, self._bits))

    def _may_compute(self, address: str, worker: Worker) -> bool:
        """Return whether a worker may compute beside the others. If not, it is shut out."""
        mine, other = worker.machinery, self._reference
        assert mine is not None
        if other is None or mine == other:
            return True
        if self._bits == "class" and mine.version == other.version:
            return True
        differing = "; ".join(mine.differences(other))
        error = InvalidInput(f"it does not compute the same bits as the others: {differing}")
        self.shut_out(address, error)
        return False

    def _take_readiness(self, address: str, worker: Worker, seconds: float) -> None:
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
        self.shut_out(address, error)

    def _until(self, worker: Worker) -> float:
        """Return the time until which a worker may compute."""
        if worker.until is None:
            return np.inf
        return self._clock() + worker.until - time.time() - WALLTIME_MARGIN

    def _take_probe(self, address: str, worker: Worker, found: Probed) -> None:
        if found.same or (self._rounds and found.apart <= found.allowed):
            self._let_in(address, worker)
            return
        error = RunFailed(
            f"its values in {self.probe} differ from the output's, by {found.apart:.1g} of the "
            f"largest"
        )
        self.shut_out(address, error)

    def _let_in(self, address: str, worker: Worker) -> None:
        """Give a worker blocks, if it may still compute beside the others."""
        if not self._may_compute(address, worker):
            return
        self._reference = self._reference or worker.machinery
        self.schedule.join(address, until=self._until(worker), seconds=worker.seconds)
        worker.ready = True
        self.tally.most = max(self.tally.most, sum(each.ready for each in self.values()))
