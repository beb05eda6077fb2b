"""Interleaved rounds of measurements, each contestant within a budget of time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from znni.machine.timing import Timing, seconds_on_device

# A function that runs something once and returns its seconds, or None if it failed.
Stopwatch: TypeAlias = Callable[[], "float | None"]


@dataclass(frozen=True)
class Effort:
    """The time that a measurement may take.

    Attributes:
        repeats: counted rounds, at least 1.
        budget: seconds for the counted rounds of one contestant, more than 0.
    """

    repeats: int
    budget: float


@dataclass(frozen=True)
class Result:
    """Measurements of one contestant.

    Attributes:
        by_round: seconds in each round; None if it sat the round out, or failed.
    """

    by_round: tuple[float | None, ...]

    @property
    def ran(self) -> bool:
        """True if there is any measurement."""
        return any(seconds is not None for seconds in self.by_round)

    @property
    def timing(self) -> Timing:
        """Times of the rounds that were run."""
        return Timing(tuple(s for s in self.by_round if s is not None))

    def record(self) -> dict[str, Any]:
        """Return the columns of a row that every measurement has."""
        timing = self.timing
        return {
            "seconds": timing.median,
            "spread": timing.spread,
            "rounds": len(timing.seconds),
            "all_seconds": timing.seconds,
        }


def seconds_of(function: Callable[[], object]) -> float:
    """Time a function of this process by the wall clock."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def stopwatch(function: Callable[[], object]) -> Stopwatch:
    """Return a contestant: a function in this process, timed by the wall clock."""
    return partial(seconds_of, function)


def run_rounds(
    contestants: Mapping[str, Stopwatch],
    effort: Effort,
    *,
    warm: Iterable[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Result]:
    """Time contestants in turn, A B C A B C ..., so that a machine's drift hits all alike.

    Each first runs once without counting, unless it is named in ``warm``. A contestant sits out
    the remaining rounds if the next one would exceed its budget, but never the first.

    Args:
        contestants: by name.
        effort: how long to measure; the budget is per contestant, by the wall clock.
        warm: those that have run lately, or take so long that a first time makes no difference.
        progress: told the name of each run.
    """
    for name in [name for name in contestants if name not in set(warm)]:
        progress(f"{name}, warm-up")
        contestants[name]()
    spent = dict.fromkeys(contestants, 0.0)
    results: dict[str, list[float | None]] = {name: [] for name in contestants}
    for done in range(effort.repeats):
        for name, run in contestants.items():
            if done and spent[name] * (done + 1) / done > effort.budget:
                results[name].append(None)
                continue
            progress(f"{name}, round {done + 1} of {effort.repeats}")
            start = time.perf_counter()
            results[name].append(run())
            spent[name] += time.perf_counter() - start
    return {name: Result(tuple(values)) for name, values in results.items()}


def rounds_on_gpu(work: Callable[[], object], effort: Effort) -> Result:
    """Time runs of one contestant by the GPU's clock, after two that are not counted.

    Args:
        work: to be timed; the first run may choose how to do it.
        effort: runs at most, and seconds for all; one is counted however long it takes.
    """
    work()
    runs = min(effort.repeats, int(effort.budget / seconds_on_device(work)))
    return Result(tuple(seconds_on_device(work) for _ in range(max(1, runs))))


def speedups(
    ours: Result, our_voxels: float, rivals: Sequence[tuple[Result, float]]
) -> dict[str, float | None]:
    """Return the speed-up over the best rival, in voxels per second, over rounds that both ran.

    Args:
        ours: seconds of one contestant.
        our_voxels: output of one of its runs.
        rivals: each with the voxels of a run; the fastest of each round counts.

    Returns:
        Columns with the median, the lowest and the highest. The latter two are None after a single
        common round. Without a common round there are no columns.
    """
    found = []
    for index, seconds in enumerate(ours.by_round):
        rates = [
            voxels / taken
            for rival, voxels in rivals
            if (taken := rival.by_round[index]) is not None
        ]
        if seconds is not None and rates:
            found.append(our_voxels / seconds / max(rates))
    if not found:
        return {}
    return {
        "ratio_to_torch": statistics.median(found),
        "ratio_lowest": min(found) if len(found) > 1 else None,
        "ratio_highest": max(found) if len(found) > 1 else None,
    }
