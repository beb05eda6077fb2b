"""Rounds and their speed-ups, ceilings, and contestants in processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from quick_benchmarks import CEILINGS

from bench import ceilings
from bench.ceilings import Floor, measure_ceilings
from bench.child import Child, ChildFailed
from bench.rounds import Effort, Result, run_rounds, speedups
from znni.plans.cost import Cost, Memory


def clock(*seconds: float) -> Callable[[], float]:
    """A contestant that takes these seconds, one after the other."""
    taken = iter(seconds)
    return lambda: next(taken)


def test_rounds_are_interleaved_and_the_warm_up_does_not_count() -> None:
    calls = []

    def contestant(name: str) -> Callable[[], float]:
        times = count()

        def run() -> float:
            calls.append(name)
            return float(next(times))

        return run

    results = run_rounds({"a": contestant("a"), "b": contestant("b")}, Effort(2, 9.0), warm=["b"])
    assert calls == ["a", "a", "b", "a", "b"]
    assert results["a"].by_round == (1.0, 2.0)
    assert results["b"].by_round == (0.0, 1.0)


def test_who_has_used_up_its_budget_sits_out_but_is_measured_once() -> None:
    results = run_rounds({"a": clock(0, 1, 1, 1)}, Effort(3, -1.0))
    assert results["a"].by_round == (1, None, None)
    assert results["a"].timing.seconds == (1,)


def test_speedups_are_over_the_fastest_rival_of_the_same_round() -> None:
    ours = Result((1.0, 2.0, 4.0))
    rivals = [(Result((8.0, 4.0, None)), 10.0), (Result((4.0, 8.0, None)), 10.0)]
    found = speedups(ours, 20.0, rivals)
    assert found["ratio_to_torch"] == pytest.approx((8 + 4) / 2)
    assert (found["ratio_lowest"], found["ratio_highest"]) == (4.0, 8.0)
    assert speedups(Result((None,)), 1.0, [(Result((1.0,)), 1.0)]) == {}


def test_a_single_round_has_neither_spread_nor_range() -> None:
    single, several = Result((None, 2.0)), Result((1.0, 2.0))
    assert single.record() == {"seconds": 2.0, "spread": None, "rounds": 1, "all_seconds": (2.0,)}
    assert several.record()["spread"] == pytest.approx(0.25 / 1.5)
    assert speedups(single, 1.0, [(several, 3.0)]) == {
        "ratio_to_torch": pytest.approx(1 / 3),
        "ratio_lowest": None,
        "ratio_highest": None,
    }


def test_the_floor_is_the_larger_of_arithmetic_and_traffic() -> None:
    def floor(flops: float, bytes_moved: float) -> Floor:
        return CEILINGS.floor(Cost(flops, bytes_moved, Memory(0, 0, 0), 0.5))

    assert floor(2e11, 1e9) == Floor(1.0, "flops")
    assert floor(2e10, 1e10) == Floor(1.0, "bytes")
    assert floor(2e11, 0).share(4.0) == 0.25


def test_ceilings_are_those_of_a_processor_of_this_century(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ceilings, "REPEATS", 1)
    monkeypatch.setattr(ceilings, "COPY_BYTES", 64 << 20)
    found = measure_ceilings(1)
    assert 1e8 < found.register_flops < 1e14
    assert 1e8 < found.sgemm_flops < 1e14
    assert 1e7 < found.copy_bandwidth < 1e13


class Server:
    def add(self, a: int, b: int) -> int:
        return a + b

    def fail(self) -> None:
        raise ValueError("not today")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def allocate(self, nbytes: int) -> None:
        np.ones(nbytes, np.uint8)


def fails_to_start() -> None:
    raise ValueError("never")


@pytest.mark.slow
def test_a_child_answers_reports_errors_and_may_be_killed() -> None:
    with Child(Server) as child:
        assert child.call("add", 2, 3) == 5
        before = child.peak_memory()
        child.call("allocate", 1 << 28)
        assert child.peak_memory() >= before + (1 << 27)
        with pytest.raises(ChildFailed, match="ValueError: not today"):
            child.call("fail")
        assert child.call("add", 2, 4) == 6  # lives on
    with Child(Server) as child:
        failed: dict[str, str] = {}
        run = child.stopwatch(failed, "victim", "die")
        assert run() is None
        assert "killed" in failed["victim"]
        assert run() is None
    with pytest.raises(ChildFailed, match="never"):
        Child(fails_to_start)
