"""The benchmark of default memory."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.default_memory import _run, with_best
from bench.end_to_end import SMALL
from bench.noise_volumes import write_noise
from bench.record import load
from znni.core.errors import RunFailed
from znni.core.shapes import Vec3


def test_default_memory_stands_beside_limits(tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    options = ["--edge", "40", "--ram", "1GiB", "--out", str(out)]
    outcome = CliRunner().invoke(app, ["default-memory", *options])
    assert outcome.exit_code == 0, outcome.output
    default, limited = load(out, "default-memory").rows
    assert (default["limit"], limited["limit"]) == ("default", "1GiB")
    assert limited["over_best"] == 0
    assert default["over_best"] == default["seconds"] / limited["seconds"] - 1
    for row in (default, limited):
        assert 0 < row["peak_gib"] < row["declared_gib"] < 8
        assert row["off"] == row["seconds"] / row["predicted_seconds"] - 1
        assert row["within_band"] == (abs(row["off"]) <= row["predicted_error"])
    assert outcome.output.count("\n| 1GiB ") == 1


def test_without_time_nothing_is_compared() -> None:
    rows = [{"limit": "default", "seconds": 3.0}, {"limit": "1GiB", "skipped": "no time was left"}]
    assert with_best(rows) == rows


def test_a_run_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL.replace("kernel: 2", "kernel: 0"))
    write_noise(tmp_path / "volume.h5", Vec3.of(32))
    with pytest.raises(RunFailed, match="failed"):
        _run(tmp_path, tmp_path / "small.yaml", 32, "default", inf)
