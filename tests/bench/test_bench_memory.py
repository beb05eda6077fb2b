"""The benchmark of default memory."""

from __future__ import annotations

from math import inf
from pathlib import Path
from statistics import median

import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.default_memory import _run, by_plan
from bench.end_to_end import SMALL
from bench.noise_volumes import write_noise
from bench.record import Row, load
from znni.core.errors import RunFailed
from znni.core.shapes import Vec3


@pytest.mark.slow
def test_runs_of_one_plan_are_judged_together(tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    options = ["--edge", "40", "--ram", "2GiB", "--ram", "4GiB", "--rounds", "1", "--out", str(out)]
    outcome = CliRunner().invoke(app, ["default-memory", *options])
    assert outcome.exit_code == 0, outcome.output
    (row,) = load(out, "default-memory").rows
    assert row["limit"] == "default, 2GiB, 4GiB"
    assert row["rounds"] == len(row["all_seconds"]) == 3, "the first run of a size does not count"
    assert row["seconds"] == median(row["all_seconds"])
    assert row["over_best"] == 0
    assert 0 < row["peak_gib"] < row["declared_gib"] < 8
    assert 0 <= row["within_band"] <= 1
    assert row["building_seconds"] >= 0
    assert outcome.output.count("| default, 2GiB, 4GiB | " + row["plan"]) == 1


def _a_run(limit: str, plan: str, seconds: float) -> Row:
    times = {"seconds": seconds, "predicted_seconds": 2.0, "predicted_error": 0.3}
    return {"limit": limit, "plan": plan, "peak_gib": seconds, **times}


def test_plans_are_compared_by_the_medians_of_their_runs() -> None:
    runs = [
        *(_a_run("default", "a", 4.0), _a_run("1GiB", "b", 2.5), _a_run("2GiB", "a", 2.0)),
        *(_a_run("default", "a", 2.5), _a_run("1GiB", "b", 3.0), _a_run("2GiB", "a", 2.5)),
    ]
    shared, other = by_plan(runs)
    assert (shared["limit"], other["limit"]) == ("default, 2GiB", "1GiB")
    assert (shared["seconds"], other["seconds"]) == (2.5, 2.75)
    assert shared["over_best"] == 0
    assert other["over_best"] == 2.75 / 2.5 - 1
    assert (shared["within_band"], shared["peak_gib"]) == (0.75, 4.0)


def test_limits_for_which_no_time_was_left_say_so() -> None:
    skipped = "no time was left"
    runs = [_a_run("default", "a", 3.0), *({"limit": it, "skipped": skipped} for it in "12")]
    default, others = by_plan([*runs, {"limit": "default", "skipped": skipped}])
    assert "over_best" not in default
    assert others == {"limit": "1, 2", "skipped": skipped}


@pytest.mark.slow
def test_a_run_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL.replace("kernel: 2", "kernel: 0"))
    write_noise(tmp_path / "volume.h5", Vec3.of(32))
    with pytest.raises(RunFailed, match="failed"):
        _run(tmp_path, tmp_path / "small.yaml", 32, "default", inf, [])
