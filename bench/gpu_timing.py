"""Times by a GPU's own clock."""

from __future__ import annotations

from collections.abc import Callable

from bench.rounds import Result
from znni.machine.cuda import cupy


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds between events around work on the current stream."""
    start, stop = cupy().cuda.Event(), cupy().cuda.Event()
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(cupy().cuda.get_elapsed_time(start, stop)) / 1000


def measured(work: Callable[[], object], repeats: int, budget: float) -> Result:
    """Seconds of so many runs, after two that are not counted.

    Args:
        work: to be timed; the first run may choose how to do it.
        repeats: runs, at most.
        budget: seconds for all of them; one is counted however long it takes.
    """
    work()
    runs = min(repeats, int(budget / seconds_of(work)))
    return Result(tuple(seconds_of(work) for _ in range(max(1, runs))))
