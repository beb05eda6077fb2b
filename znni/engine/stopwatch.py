"""Measuring where the time of a job goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, TypeAlias

from znni.job_seconds import JobSeconds

Purpose: TypeAlias = Literal["building", "computing", "waiting", "reading", "writing"]


class Stopwatch:
    """Adds up the seconds of each purpose, whichever thread has it; no two threads share one."""

    def __init__(self) -> None:
        self._seconds: dict[Purpose, float] = {
            "building": 0.0,
            "computing": 0.0,
            "waiting": 0.0,
            "reading": 0.0,
            "writing": 0.0,
        }

    @contextmanager
    def during(self, purpose: Purpose) -> Iterator[None]:
        """Count what happens within a ``with`` block, however it ends."""
        start = perf_counter()
        try:
            yield
        finally:
            self._seconds[purpose] += perf_counter() - start

    @property
    def seconds(self) -> JobSeconds:
        """So far."""
        return JobSeconds(**self._seconds)
