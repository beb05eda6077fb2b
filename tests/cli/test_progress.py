"""The progress of a run: a bar on a terminal or in a notebook, one line a minute elsewhere."""

from __future__ import annotations

import sys
from io import StringIO
from types import ModuleType, SimpleNamespace
from typing import Any

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


def notebook(monkeypatch: pytest.MonkeyPatch, shell: object) -> list[str]:
    """Stand in for IPython with a shell, and return what is displayed, as HTML and as text."""
    displayed: list[str] = []

    def keep(bar: Any) -> None:
        displayed.extend([bar._repr_html_(), repr(bar)])

    def display(bar: Any, display_id: bool) -> SimpleNamespace:
        assert display_id
        keep(bar)
        return SimpleNamespace(update=keep)

    module, inner = ModuleType("IPython"), ModuleType("IPython.display")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    inner.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return displayed


def test_progress_in_a_notebook_replaces_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    displayed = notebook(monkeypatch, SimpleNamespace(kernel=object()))
    clock = iter([0.0, 0.1, 10.0, 20.0])
    monkeypatch.setattr("znni.cli.progress.time.perf_counter", lambda: next(clock))
    with show_progress() as progress:
        for done in (0, 100, 1000, 2000):
            progress(done, 2000)
    assert displayed[1::2] == [
        "0%",
        "50%, 100 voxels/s, 10.0 s left",
        "100%, 100 voxels/s",
    ]
    assert displayed[2] == (
        '<progress value="1000" max="2000"></progress> <code>50%, 100 voxels/s, 10.0 s left</code>'
    )
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_a_shell_of_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    displayed = notebook(monkeypatch, shell)
    with show_progress() as progress:
        progress(1, 2)
    assert not displayed
