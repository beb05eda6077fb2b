"""Measure where the time of a job goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import Literal, TypeAlias

from znni.core.trace import note_span
from znni.plans.job_seconds import (
    NOTHING_AROUND,
    PHASES,
    REPORT_STAGES,
    JobSeconds,
    Phase,
    ReportStage,
    SecondsAround,
    StageSeconds,
)

Purpose: TypeAlias = Literal["building", "running"] | Phase | ReportStage


class SharedStopwatch:
    """Adds up the seconds in which at least one of several threads works.

    Attributes:
        seconds: the seconds so far, up to when the last thread stopped.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._changing = Lock()
        self._working = 0
        self._since = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a ``with`` block, however it ends, unless another thread counts it."""
        with self._changing:
            if not self._working:
                self._since = perf_counter()
            self._working += 1
        try:
            yield
        finally:
            with self._changing:
                self._working -= 1
                if not self._working:
                    self.seconds += perf_counter() - self._since


class TimedBlock:
    """A ``with`` block whose seconds a stopwatch counts. A generator takes longer to make."""

    __slots__ = ("_purpose", "_start", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch, purpose: Purpose) -> None:
        self._stopwatch = stopwatch
        self._purpose: Purpose = purpose

    def __enter__(self) -> TimedBlock:
        self._start = perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        now = perf_counter()
        self._stopwatch.add(self._purpose, now - self._start)
        note_span(self._purpose, self._start, now)

    @contextmanager
    def paused_for(self, purpose: Purpose) -> Iterator[None]:
        """Count the time of a ``with`` block inside this one for another purpose instead."""
        self.__exit__()
        try:
            with self._stopwatch.during(purpose):
                yield
        finally:
            self.__enter__()


class Stopwatch:
    """Adds up the seconds of each purpose. Only one thread at a time may add to a purpose.

    Args:
        before: the seconds of each phase that passed before.
    """

    def __init__(self, before: SecondsAround = NOTHING_AROUND) -> None:
        self._seconds: dict[Purpose, float] = {}
        self._seconds.update(before.by_phase().items())

    def during(self, purpose: Purpose) -> TimedBlock:
        """Count the time of a ``with`` block, however it ends."""
        return TimedBlock(self, purpose)

    def add(self, purpose: Purpose, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._seconds[purpose] = self.of(purpose) + seconds

    def of(self, purpose: Purpose) -> float:
        """Return the seconds of a purpose so far."""
        return self._seconds.get(purpose, 0.0)

    @property
    def seconds(self) -> JobSeconds:
        """The seconds of all purposes so far."""
        known = self._seconds.get
        busy = StageSeconds(**{stage: known(stage, 0.0) for stage in REPORT_STAGES})
        around = SecondsAround(**{phase: known(phase, 0.0) for phase in PHASES})
        return JobSeconds(known("building", 0.0), known("running", 0.0), busy, around)
