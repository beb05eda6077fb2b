"""The progress of a run: a bar on a terminal or in a notebook, one line a minute elsewhere."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from command_line import INFER, SMALL_NET, succeeds
from paths import ROOT
from waiting import until

from planner.search import Search
from znni.cli.progress import show_progress, telling
from znni.plans.plan import Plan


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def show_times(monkeypatch: pytest.MonkeyPatch, times: Iterator[float]) -> None:
    """Have the progress look at these times. Other threads have the clock as it is."""
    clock = SimpleNamespace(perf_counter=times.__next__)
    monkeypatch.setattr("znni.cli.progress.time", clock)


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
    show_times(monkeypatch, clock)
    with show_progress() as progress:
        for done in (100, 610, 800, 1220):
            progress(done, 2440)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "25% done, 10 voxels/s, 3 min left",
        "50% done, 10 voxels/s, 2 min left",
    ]


def test_a_step_without_output_shows_no_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 71.0, 72.0, 140.0])
    show_times(monkeypatch, clock)
    with show_progress() as progress:
        for done in (0, 61_000_000):
            progress(done, 122_000_000, "reading", rated=False)
        for done in (0, 680):
            progress(done, 1360)
    said = capsys.readouterr().err.splitlines()
    assert said == ["50% done, 1 min left, reading", "50% done, 10 voxels/s, 1 min left"]


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
    show_times(monkeypatch, clock)
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


def test_a_run_begins_with_its_prediction_and_goes_on_by_its_blocks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    displayed = notebook(monkeypatch, SimpleNamespace(kernel=object()))
    caplog.set_level(logging.INFO, logger="znni.waits")
    clock = iter([0.0, 100.0])  # the first block tells the rate, however long it takes
    show_times(monkeypatch, clock)
    plan: Any = SimpleNamespace(
        patches=8,
        time=SimpleNamespace(for_job=lambda blocks: SimpleNamespace(running=2.0 * blocks)),
        time_in_words=lambda seconds: f"{seconds} s, between 5 s and 20 s",
        on_host=None,
        machine=SimpleNamespace(absent=False),
    )
    with show_progress() as progress:
        telling(progress)(plan, 500, 2000)
        progress(1000, 2000)
    assert displayed[1::2] == [
        "25%, about 12.0 s",
        "50%, 5 voxels/s, 3 min 20 s left",
    ]
    assert caplog.messages == ["the run takes 12.0 s, between 5 s and 20 s, as predicted"]


def test_a_long_text_leaves_the_bar_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    with show_progress() as progress:
        progress(500, 1000, "a text of many words that says more than a line has place for")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).splitlines()
    assert re.search(r"[━╺╸]{30,40}  50%   a text of many words that says more $", shown[-2])
    assert shown[-1].strip() == "than a line has place for"


def test_a_terminal_tells_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    show_times(monkeypatch, count(0.0, 100.0))
    with show_progress() as progress:
        progress(0, 1000)
        progress(400, 1000)
    assert "4 voxels/s" in terminal.getvalue()
    assert "2 min 30 s left" in terminal.getvalue()


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_a_shell_of_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    displayed = notebook(monkeypatch, shell)
    with show_progress() as progress:
        progress(1, 2)
    assert not displayed


@pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")
@pytest.mark.parametrize(
    "command", [("plan", "--net", "tiny.yaml", "--volume", "40,40,40", "--fresh"), INFER]
)
def test_a_long_search_says_so(
    command: tuple[str, ...], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.core.logged.LONG_SECONDS", 1e-4)
    caplog.set_level(logging.INFO, logger="znni.waits")
    fastest = Search.fastest

    def long(search: Search, *given: Any, **options: Any) -> list[Plan]:
        until(lambda: "searching for the fastest plan, 0 s so far" in caplog.messages)
        return fastest(search, *given, **options)

    monkeypatch.setattr(Search, "fastest", long)
    succeeds(*command)


@pytest.mark.slow
def test_only_a_terminal_is_told_of_a_long_search(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL_NET)
    impatient = "from znni.core import logged; logged.LONG_SECONDS = 1e-4"
    options = ("plan", "--net", "small.yaml", "--volume", "40,40,40", "--device", "cpu", "--fresh")
    command = [sys.executable, "-c", f"{impatient}; from znni.cli import main; main()", *options]
    terminal, its_end = os.openpty()
    with os.fdopen(terminal, "rb", 0) as shown, os.fdopen(its_end, "wb") as stderr:
        for errors in (stderr, subprocess.PIPE):
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                check=True,
            )
        assert shown.read(1000).startswith(
            b"znni: info: searching for the fastest plan, 0 s so far"
        )
    assert not done.stderr
