"""Seconds count once: for one of several threads, and for one of two purposes."""

from __future__ import annotations

import time
from threading import Barrier, Thread

import pytest

from znni.engine.stopwatch import SharedStopwatch, Stopwatch


def test_seconds_of_threads_that_work_at_the_same_time_count_once() -> None:
    clock, met, alone = SharedStopwatch(), Barrier(2), 0.1

    def work() -> None:
        with clock.running():
            met.wait(10)
            time.sleep(alone)
            met.wait(10)

    both = [Thread(target=work) for _ in range(2)]
    start = time.perf_counter()
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    together = clock.seconds
    assert alone < together < time.perf_counter() - start
    with clock.running():
        time.sleep(alone)
    assert clock.seconds >= together + alone


def test_a_block_within_a_block_counts_for_its_own_purpose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([0.0, 1.0, 10.0, 30.0, 100.0, 400.0])
    monkeypatch.setattr("znni.engine.stopwatch.perf_counter", lambda: next(times))
    stopwatch = Stopwatch()
    with (
        pytest.raises(ValueError, match="while it measures"),
        stopwatch.during("planning") as planning,
        planning.paused_for("measuring"),
    ):
        raise ValueError("while it measures")
    around = stopwatch.seconds.around
    assert (around.planning, around.measuring) == (1.0 + 300.0, 20.0)
