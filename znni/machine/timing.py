"""Repeated measurements of a time, on the host and by a GPU's own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from znni.machine.cuda import cupy


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing, in seconds; at least one."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median, the figure to quote."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float | None:
        """Half the range between the quartiles, as a share of the median; None for a single one."""
        if len(self.seconds) < 2:
            return None
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (upper - lower) / 2 / self.median


def timed(function: Callable[[], object], repeats: int) -> Timing:
    """Call a function once to warm up, and then time it.

    Args:
        function: function to time.
        repeats: number of timed calls; at least one.
    """
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return Timing(tuple(seconds))


def timed_on_device(function: Callable[[], object], repeats: int) -> Timing:
    """Call a function once to warm up, and then time its work on the current stream.

    The host waits for the end of each call. So no call is timed while the next one is prepared.

    Args:
        function: function to time.
        repeats: number of timed calls; at least one.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the GPU fails.
    """
    function()
    return Timing(tuple(seconds_on_device(function) for _ in range(repeats)))


def seconds_on_device(function: Callable[[], object]) -> float:
    """Return the seconds that one call's work on the current stream takes, and wait for its end.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the GPU fails.
    """
    event = cupy().cuda.Event
    start, stop = event(), event()
    start.record()
    function()
    stop.record()
    stop.synchronize()
    return float(cupy().cuda.get_elapsed_time(start, stop)) * 1e-3
