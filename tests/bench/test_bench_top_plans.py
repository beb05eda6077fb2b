"""The best plans side by side: what is measured of each, and what is lost with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from quick_benchmarks import NETWORK, QUICK, in_process

import bench.top_plans
from bench.table import table
from bench.top_plans import CalibratedCalls, best_plans, compare_plans, held_out
from znni.calibration.cost_file import VARIABLE
from znni.calibration.database import CostDatabase
from znni.calibration.measure import Workbench
from znni.calibration.record import record
from znni.calibration.shapes import Call
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Machine
from znni.network.layers import Conv
from znni.plans.plan import Plan
from znni.primitives.catalogue import catalogue


@pytest.fixture(scope="module")
def plans() -> dict[int, Plan]:
    found = best_plans(NETWORK, 0, 16, 3, ram=2 << 30, threads=2, costs="built-in")
    return dict(enumerate(found, 1))


@pytest.mark.slow
def test_each_is_measured_and_compared_with_the_fastest(
    plans: dict[int, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
    assert len(plans) == 3
    rows = compare_plans(plans, QUICK)
    assert [row["rank"] for row in rows] == [1, 2, 3]
    fastest = max(row["voxels_per_s"] for row in rows)
    assert "beside_first" not in rows[0]
    for row in rows[1:]:
        ratios = zip(row["all_seconds"], rows[0]["all_seconds"], strict=True)
        beside = median(its / first for its, first in ratios) * row["patches"] / rows[0]["patches"]
        assert row["beside_first"] == pytest.approx(beside - 1)
    for plan, row in zip(plans.values(), rows, strict=True):
        assert row["patch"] == str(plan.patch)
        assert row["costs"] == "a model of flops and bytes"
        assert row["rounds"] == QUICK.repeats
        assert row["regret"] == pytest.approx(fastest / row["voxels_per_s"] - 1)
        whole = row["seconds"] * plan.patches
        assert row["voxels_per_s"] == pytest.approx(plan.output.volume / whole)
        assert plan.patch_seconds < row["predicted_seconds"] < 1.5 * plan.patch_seconds
        assert row["off"] == pytest.approx(row["predicted_seconds"] / row["seconds"] - 1)
        assert "drift" not in row
    assert table("top-plans", rows).count("\n") == 4


@pytest.mark.slow
def test_the_calibrations_calls_tell_how_fast_the_machine_is_now(
    plans: dict[int, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of half and a third of what they are now are those of a machine twice as fast or so."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "costs.sqlite"))
    primitives = catalogue(plans[1].machine)
    first = primitives[plans[1].steps[0].primitive]
    assert CalibratedCalls(2, [first.name]).count() == 0
    operation = Conv("conv", 8, 8, Vec3.of(3), "relu")
    calls = [Call(operation, Shape5(1, 8, size, 64, 64)) for size in (60, 90)]
    bench = Workbench([(first, call) for call in calls])
    then = [(first, call, bench.measure(first, call, 1).median) for call in calls]
    monkeypatch.setattr("bench.top_plans.SHORTEST", 0.0)
    monkeypatch.setattr("bench.top_plans.LEAST_SECONDS", 0.0)
    record(((first, call, seconds / 20) for first, call, seconds in then), CostDatabase())
    again = CalibratedCalls(2, [first.name])
    assert again.count() == len(calls)
    assert again.slower() > 4
    measured = {
        rank: replace(plan, costs="measured on this machine") for rank, plan in plans.items()
    }
    in_process(monkeypatch)
    for row in compare_plans(measured, QUICK):
        assert row["drift"] > 3
        assert row["off_now"] == pytest.approx((1 + row["off"]) * (1 + row["drift"]) - 1)


def test_luck_has_no_part_in_what_is_lost() -> None:
    """Each of nine plans is fast once, by luck: the first loses nothing beside any of them."""
    rounds = 9
    rows = [{"patches": 1, "rounds": rounds, "all_seconds": [1.0] * rounds}]
    for lucky in range(rounds):
        seconds = [0.5 if lucky == number else 1.0 for number in range(rounds)]
        rows.append({"patches": 1, "rounds": rounds, "all_seconds": seconds})
    assert held_out(rows)["regret_held_out"] == pytest.approx(0)
    rows.append({"patches": 1, "rounds": rounds, "all_seconds": [0.8] * rounds})
    found = held_out(rows)
    assert found["regret_held_out"] == pytest.approx(0.25)
    assert found["regret_error"] == pytest.approx(0)
    assert held_out([{"patches": 1, "rounds": 2, "all_seconds": [1.0, 1.0]}]) == {}


def test_patches_of_many_seconds_are_not_warmed_up(
    plans: dict[int, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    in_process(monkeypatch)
    monkeypatch.setattr("bench.session.progress", told.append)
    compare_plans({1: plans[1]}, QUICK)
    assert "plan 1, warm-up" in told
    monkeypatch.setattr(bench.top_plans, "LONG", 0.0)
    told.clear()
    (row,) = compare_plans({1: plans[1]}, QUICK)
    assert "plan 1, warm-up" not in told
    assert row["rounds"] == QUICK.repeats


def test_one_that_cannot_run_says_why(
    plans: dict[int, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
    first, second = plans[1], plans[2]
    segment, *segments = second.segments
    step, *steps = segment.steps
    unknown = replace(segment, steps=(replace(step, primitive="none"), *steps))
    rows = compare_plans({1: first, 2: replace(second, segments=(unknown, *segments))}, QUICK)
    assert rows[0]["regret"] == 0
    assert "none" in rows[1]["skipped"]
    assert "regret" not in rows[1]


def test_plans_that_do_not_fit_together_are_refused(
    plans: dict[int, Plan], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(machine, host=replace(machine.host, memory=plans[1].memory.total))
    monkeypatch.setattr(bench.top_plans, "detect_machine", lambda: small)
    in_process(monkeypatch)
    with pytest.raises(InvalidInput, match=r"3 plans take .* give a lower --ram or --count"):
        compare_plans(plans, QUICK)
    assert len(compare_plans({1: plans[1]}, QUICK)) == 1
