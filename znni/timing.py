"""Repeated measurements of a time, and the figures that sum them up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing, in seconds; at least one."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float | None:
        """Half the range between the quartiles, as a share of the median; None of a single one."""
        if len(self.seconds) < 2:
            return None
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (upper - lower) / 2 / self.median


def timed(function: Callable[[], object], repeats: int) -> Timing:
    """Call a function once to warm up, and then time it.

    Args:
        function: what to time.
        repeats: timed calls; at least one.
    """
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return Timing(tuple(seconds))
