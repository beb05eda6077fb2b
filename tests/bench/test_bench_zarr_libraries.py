"""The benchmark of Zarr beside other libraries: what it measures, and its command."""

from __future__ import annotations

from pathlib import Path

import pytest
from quick_benchmarks import QUICK
from typer.testing import CliRunner

from bench import zarr_libraries
from bench.__main__ import app
from bench.record import load
from bench.zarr_libraries import OURS, TENSORSTORE, Case, compared, pipelines

pytest.importorskip("tensorstore")


@pytest.mark.parametrize("codec", ["zstd", "blosc"])
def test_each_thing_is_done_by_all_libraries(
    codec: zarr_libraries.Codec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zarr_libraries, "VOLUME", 48)
    rows = compared(Case(codec, "uint8", True, 32), tmp_path, QUICK)
    actions = ["read 16^3", "read 24^3 across chunks", "read 32^3", "open"]
    assert [row["action"] for row in rows] == ["write 32^3"] * (codec != "blosc") + actions
    for row in rows[:-1]:
        for name in (OURS, *pipelines(), TENSORSTORE):
            assert row[f"{name}_seconds"] > 0
            assert (f"{name}_ratio" in row) == (name != OURS)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_its_command_saves_what_it_prints(tmp_path: Path) -> None:
    out = tmp_path / "zarr.json"
    command = ["zarr-libraries", "--size", "16", "--codec", "none", "--repeats", "1"]
    found = CliRunner().invoke(app, [*command, "--folder", str(tmp_path), "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert "| none  | uint8" in found.output
    assert {row["dtype"] for row in load(out, "zarr-libraries").rows} == {"float32", "uint8"}
    assert CliRunner().invoke(app, ["zarr-libraries", "--codec", "zip"]).exit_code
