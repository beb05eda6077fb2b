"""The best plans side by side: what is measured of each, and what is lost with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from quick_benchmarks import NETWORK, QUICK

import bench.top_plans
from bench.session import top_plans
from bench.table import table
from bench.top_plans import compare_plans
from znni.errors import InvalidInput
from znni.machine import Machine
from znni.plans import Plan


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    return top_plans(NETWORK, 0, 2 << 30, 2, 16, "built-in", "float32", count=3)


def test_each_is_measured_and_compared_with_the_fastest(plans: list[Plan]) -> None:
    assert len(plans) == 3
    rows = compare_plans(plans, QUICK)
    assert [row["rank"] for row in rows] == [1, 2, 3]
    fastest = max(row["voxels_per_s"] for row in rows)
    for plan, row in zip(plans, rows, strict=True):
        assert row["patch"] == str(plan.patch)
        assert row["costs"] == "a model of flops and bytes"
        assert row["rounds"] == QUICK.repeats
        assert row["regret"] == pytest.approx(fastest / row["voxels_per_s"] - 1)
        whole = row["seconds"] * plan.patches
        assert row["voxels_per_s"] == pytest.approx(plan.output.volume / whole)
        assert row["off"] == pytest.approx(plan.patch_seconds / row["seconds"] - 1)
    assert table("top-plans", rows).count("\n") == 4


def test_one_that_cannot_run_says_why(plans: list[Plan]) -> None:
    first, second, *_ = plans
    segment, *segments = second.segments
    step, *steps = segment.steps
    unknown = replace(segment, steps=(replace(step, primitive="none"), *steps))
    rows = compare_plans([first, replace(second, segments=(unknown, *segments))], QUICK)
    assert rows[0]["regret"] == 0
    assert "none" in rows[1]["skipped"]
    assert "regret" not in rows[1]


def test_plans_that_do_not_fit_together_are_refused(
    plans: list[Plan], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(machine, host=replace(machine.host, memory=plans[0].memory.total))
    monkeypatch.setattr(bench.top_plans, "detect_machine", lambda: small)
    with pytest.raises(InvalidInput, match=r"3 plans take .* give a lower --ram or --count"):
        compare_plans(plans, QUICK)
    assert len(compare_plans(plans[:1], QUICK)) == 1
