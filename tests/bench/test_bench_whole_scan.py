"""``python -m bench whole-scan`` without nnU-Net: networks of its own, and commands of znni."""

from __future__ import annotations

from pathlib import Path

import pytest
from quick_benchmarks import CEILINGS
from typer.testing import CliRunner

from bench import whole_scan
from bench.__main__ import app
from bench.record import load
from znni.cases.network_set import networks_at

pytest.importorskip("nibabel", reason="it is not installed (znni[nifti])")


def test_znni_runs_alone_over_networks_that_the_command_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def timed(command: list[str], _environment: object) -> tuple[float, int]:
        commands.append(command)
        return 3.0 - len(commands), 2**30 * (5 - len(commands))

    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    monkeypatch.setattr(whole_scan, "timed_command", timed)
    out, size = tmp_path / "scan.json", ["--size", "12", "--size", "20", "--size", "18"]
    found = CliRunner().invoke(
        app,
        ["whole-scan", *size, "--networks", "2", "--classes", "3", "--window", "32",
         "--folder", str(tmp_path), "--threads", "1", "--out", str(out)],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    (row,) = load(out, "whole-scan").rows
    assert (row["networks"], row["first_seconds"], row["seconds"]) == (2, 2.0, 1.0)
    assert (row["first_peak_gib"], row["peak_gib"]) == (4.0, 3.0)
    networks = networks_at(tmp_path / "set.yaml")
    assert networks.numbers == (((0, 0), (1, 1), (2, 2)), ((0, 0), (1, 3), (2, 4)))
    assert all(each.case and networks.weights() for each in networks.networks)
    assert str(tmp_path / "set.yaml") in commands[0]
