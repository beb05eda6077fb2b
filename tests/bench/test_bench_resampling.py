"""The benchmark of resampling beside other libraries: what it measures, and its command."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.record import load
from bench.resampling import OURS, SCIPY


@pytest.mark.slow
def test_its_command_saves_what_it_prints(tmp_path: Path) -> None:
    out = tmp_path / "resampling.json"
    command = ["resampling", "--size", "16", "--maps", "3", "--threads", "2", "--repeats", "2"]
    found = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert found.exit_code == 0, found.output
    rows = load(out, "resampling").rows
    assert [row["case"] for row in rows if row["name"] == OURS] == [
        "image", "image", "maps", "labels",
    ]  # fmt: skip
    assert {OURS, SCIPY} <= {row["name"] for row in rows}
    for row in rows:
        assert row["seconds"] > 0
        assert row["floor_seconds"] > 0
        assert row.get("difference", 0) <= 1e-5
        assert row.get("labels_apart", 0) <= 5
        assert ("scratch_mib" in row) == (row["name"] == OURS)
