"""Measure where the time of a job goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, TypeAlias

from znni.plans.job_seconds import (
    NOTHING_AROUND,
    JobSeconds,
    Phase,
    SecondsAround,
    Stage,
    StageSeconds,
)

Purpose: TypeAlias = Literal["building", "running"] | Phase | Stage


class Stopwatch:
    """Adds up the seconds of each purpose. Only one thread at a time may add to a purpose.

    Args:
        before: the seconds of each phase that passed before.
    """

    def __init__(self, before: SecondsAround = NOTHING_AROUND) -> None:
        self._seconds: dict[Purpose, float] = {}
        self._seconds.update(before.by_phase().items())

    @contextmanager
    def during(self, purpose: Purpose) -> Iterator[None]:
        """Count the time of a ``with`` block, however it ends."""
        start = perf_counter()
        try:
            yield
        finally:
            self.add(purpose, perf_counter() - start)

    def add(self, purpose: Purpose, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._seconds[purpose] = self._seconds.get(purpose, 0.0) + seconds

    @property
    def seconds(self) -> JobSeconds:
        """The seconds of all purposes so far."""
        known = self._seconds.get
        busy = StageSeconds(
            known("reading", 0.0),
            known("host_layers", 0.0),
            known("transfer", 0.0),
            known("gpu_layers", 0.0),
            known("writing", 0.0),
        )
        around = SecondsAround(
            known("start", 0.0),
            known("planning", 0.0),
            known("opening", 0.0),
            known("finishing", 0.0),
            known("exit", 0.0),
            known("importing", 0.0),
        )
        return JobSeconds(known("building", 0.0), known("running", 0.0), busy, around)
