"""The progress of a folder of cases shows one case and its step, and no rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from znni.cases.case_folder import Case
from znni.cli.cases_progress import CasesProgress, show_cases

A, B = (Case((Path(f"{name}_0000.nii.gz"),), Path(f"{name}.nii.gz")) for name in "ab")


@pytest.fixture
def said() -> list[tuple[Any, ...]]:
    """What is shown: done, total and text."""
    return []


@pytest.fixture
def shown(said: list[tuple[Any, ...]]) -> CasesProgress:
    def advance(done: int, total: int, beside: str = "", /, *, rated: bool = True) -> None:
        assert not rated  # bursts of cases have no rate
        said.append((done, total, beside))

    return CasesProgress(advance, [A, B])


def test_a_network_hides_the_steps_of_other_cases(
    shown: CasesProgress, said: list[tuple[Any, ...]]
) -> None:
    shown.step(A, "reading", 10, 10)
    shown.step(A, "network", 0, 1)
    shown.step(B, "reading", 5, 10)
    shown.step(B, "network", 0, 1)
    shown.step(A, "network", 30, 30)
    shown.step(A, "writing", 1, 2)
    shown.step(B, "network", 30, 30)
    shown.step(B, "writing", 1, 2)
    shown.done(1, 2)
    shown.done(2, 2)
    assert said == [
        (10, 10, "a.nii.gz (1 of 2): reading"),
        (0, 1, "a.nii.gz (1 of 2): network"),
        (30, 30, "a.nii.gz (1 of 2): network"),
        (30, 30, "b.nii.gz (2 of 2): network"),
        (1, 2, "b.nii.gz (2 of 2): writing"),
        (2, 2, "2 cases"),
    ]


def test_a_case_that_fails_hides_no_other(
    shown: CasesProgress, said: list[tuple[Any, ...]]
) -> None:
    shown.step(A, "network", 10, 30)
    shown.done(1, 2)
    shown.step(B, "reading", 5, 10)
    assert said[1:] == [(5, 10, "b.nii.gz (2 of 2): reading")]


def test_cases_that_are_finished_tell_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with show_cases([A, B]) as shown:
        for done in (1, 2):
            shown.done(done, 2)
    assert "/s" not in capsys.readouterr().err


@pytest.mark.parametrize(("hidden", "lines"), [(False, 1), (True, 0)])
def test_progress_may_be_hidden(
    hidden: bool, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("znni.cli.progress.LINE_EVERY_SECONDS", 0)
    with show_cases([A, B], hidden=hidden) as shown:
        shown.step(A, "network", 10, 30)
        shown.step(A, "network", 20, 30)
    assert capsys.readouterr().err.count("a.nii.gz (1 of 2): network") == lines
