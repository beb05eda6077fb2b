"""``python -m bench case-folder``: a folder of tiny cases, one of them damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quick_benchmarks import CEILINGS
from typer.testing import CliRunner

from bench import case_folder
from bench.__main__ import app
from bench.record import load

pytest.importorskip("nibabel", reason="it is not installed (znni[nifti])")


class Here:
    """A ``Child`` whose object is in this process."""

    def __init__(self, make: Any, *arguments: Any, **_environment: object) -> None:
        self._object = make(*arguments)

    def call(self, method: str) -> Any:
        return getattr(self._object, method)()

    def peak_memory(self) -> int:
        return 2**30

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


@pytest.mark.slow
def test_shares_are_those_after_the_first_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    monkeypatch.setattr(case_folder, "Child", Here)
    out, size = tmp_path / "cases.json", ["--size", "12", "--size", "20", "--size", "18"]
    found = CliRunner().invoke(
        app,
        ["case-folder", "--cases", "4", *size, "--window", "32", "--folder", str(tmp_path),
         "--threads", "1", "--out", str(out)],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    *cases, together = load(out, "case-folder").rows
    assert [row.get("failed") for row in cases] == [None, None, "yes", None]
    assert (together["cases"], together["failed"]) == (4, "1")
    assert 0 < together["layers_busy"] <= 1
    assert together["first_seconds"] < together["seconds"]
    assert cases[0]["done_at"] < cases[1]["done_at"] < cases[3]["done_at"]


@pytest.mark.slow
def test_shares_of_the_gpu_are_those_between_two_networks() -> None:
    busy = type("Busy", (), {"gpu_layers": 2.0, "host_layers": 0.0})
    timed = type("Time", (), {"busy": busy})
    each = type("Report", (), {"time": timed})
    found = type("CaseReport", (), {"reports": (each,)})
    report: Any = type("Report", (), {"reports": dict.fromkeys("abc", found), "failures": []})
    samples = [(1.0, 0.0), (2.5, 1.0), (4.0, 0.5), (9.0, 0.0)]
    row = case_folder._row_of_all(report, 10.0, 0.5, [2.0, 4.0, 7.0], samples, "gpu")
    assert row["layers_busy"] == 4 / 5
    assert row["gpu_busy"] == 0.75
    assert (row["first_seconds"], row["each_seconds"]) == (1.5, 2.5)
