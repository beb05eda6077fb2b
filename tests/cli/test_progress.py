"""The progress of a run: a bar on a terminal, one line a minute elsewhere."""

from __future__ import annotations

from io import StringIO

import pytest

from znni.cli.progress import show_progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with show_progress() as progress:
        progress(500, 1000)
        progress(1000, 1000)
    assert "100%" in terminal.getvalue()
    assert "voxels/s" in terminal.getvalue()


def test_progress_elsewhere_is_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 61.0, 90.0, 122.0])
    monkeypatch.setattr("znni.cli.progress.time.perf_counter", lambda: next(clock))
    with show_progress() as progress:
        for done in (100, 610, 800, 1220):
            progress(done, 2440)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "25% done, 10 voxels/s, 3 min left",
        "50% done, 10 voxels/s, 2 min left",
    ]
