"""``python -m bench sliding-windows``: whole runs of znni and of its peers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from quick_benchmarks import CEILINGS
from typer.testing import CliRunner

from bench.__main__ import app
from bench.accuracy import gaps_of_labels
from bench.record import Row, load

PEER = "torch fp32 contiguous_format"


def rows(out: Path, *arguments: str) -> list[Row]:
    """The rows of runs over a small volume."""
    options = ("--net", "unet3d", "--size", "24", "--window", "16", "--threads", "2")
    found = CliRunner().invoke(app, ["sliding-windows", *options, *arguments, "--out", str(out)])
    assert found.exit_code == 0, found.output
    return load(out, "sliding-windows").rows


@pytest.mark.slow
def test_whole_runs_with_and_without_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    out, folder = tmp_path / "runs.json", tmp_path / "files"
    ours = ("--peer", "znni", "--folder", str(folder), "--repeats", "2")
    (windowed,) = rows(out, *ours)
    assert windowed["window"] == "16x16x16"
    assert len(windowed["all_seconds"]) == 2
    assert windowed["all_seconds"] == [windowed["first_seconds"], windowed["seconds"]]
    assert windowed["work_seconds"] < windowed["seconds"]
    without = ("--peer", "znni, no windows", "--folder", str(folder), "--keep")
    kept, exact = rows(out, *without)
    assert kept == windowed
    assert exact["window"] is None
    again = rows(out, *without)
    assert [row["name"] for row in again] == ["znni", "znni, no windows"]


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("monai"), reason="MONAI is not installed")
def test_windows_of_monai_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    both = ("--peer", "znni", "--peer", PEER, "--batch", "1", "--batch", "3")
    _, *theirs = rows(tmp_path / "runs.json", *both)
    assert [row["batch"] for row in theirs] == [1, 3]
    assert max(row["difference"] for row in theirs) < 1e-4


@pytest.mark.parametrize(
    "arguments",
    [["--mirror", "--peer", PEER], ["--net", "nnunet-instance", "--peer", "znni, no windows"]],
)
def test_contestants_that_cannot_take_part_are_refused(arguments: list[str]) -> None:
    found = CliRunner().invoke(app, ["sliding-windows", *arguments])
    assert "is unknown; choose from znni" in str(found.exception)


def test_labels_differ_by_a_share_of_the_largest_value() -> None:
    values = np.array([[[[4.0, 1.0, 2.0]]], [[[3.0, 1.0, -8.0]]]])
    ours, theirs = values.argmax(0), np.array([[[1, 0, 0]]])
    assert gaps_of_labels(ours, theirs, values).tolist() == [1 / 8]
    assert gaps_of_labels(ours, ours, values).size == 0
