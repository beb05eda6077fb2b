"""What the window says while a run goes on."""

from __future__ import annotations

import pytest

from znni.napari import status
from znni.napari.status import RunStatus
from znni.napari.task import Progressed
from znni.napari.words import in_window


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(status, "monotonic", lambda: now[0])
    return now


def test_the_wait_for_the_first_block_is_counted(clock: list[float]) -> None:
    run = RunStatus(status.COMPILING)
    assert run.waiting() == status.COMPILING
    clock[0] = 40.3
    assert run.waiting() == f"{status.COMPILING}, 40 s so far"
    run.begin()
    assert run.waiting() == "computing the first block"
    clock[0] += 75
    assert run.waiting() == "computing the first block, 1 min 15 s so far"
    assert run.progressed(Progressed(1, 4)) == "25%"
    assert not run.waiting()


def test_a_run_that_goes_on_waits_for_its_first_block(clock: list[float]) -> None:
    run = RunStatus(share=0.5)
    assert run.waiting() == "starting"
    run.progressed(Progressed(2, 4))
    clock[0] = 3
    assert run.waiting() == "starting, 3 s so far"
    run.begin()
    assert run.waiting()
    run.progressed(Progressed(3, 4))
    assert not run.waiting()


def test_nothing_is_waited_for_after_the_end(clock: list[float]) -> None:
    run = RunStatus(status.PLANNING)
    clock[0] = 3
    assert run.waiting() == "planning, 3 s so far"
    run.end()
    assert not run.waiting()


def test_a_cancelled_run_says_what_stays() -> None:
    run = RunStatus()
    assert run.cancelled() == "cancelled: no block was finished"
    assert "50% is finished, and stays" in RunStatus(share=0.5).cancelled()
    run.progressed(Progressed(3, 20))
    assert run.cancelled() == "cancelled: 15% is finished, and stays. Press Plan to go on"
    assert run.progressed(Progressed(2, 3)) == "67%"
    assert run.cancelled().startswith("cancelled: 67% is finished")
    run.progressed(Progressed(1, 2, "network"))
    assert run.cancelled() == "cancelled: what is finished stays. Press Plan to go on"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "o.h5: exists; give overwrite=True (--overwrite) to replace it, or another output",
            "o.h5: exists; tick overwrite to replace it, or name another output",
        ),
        ("give border='same' (--border same)", "give Edges same"),
        ("give less with ram (--ram)", "give less with Memory"),
        ("give resume=False (--no-resume)", "give resume=False (--no-resume)"),
        ("kept; the same command goes on from there", "kept; press Plan to go on"),
    ],
)
def test_options_are_named_as_the_window_has_them(text: str, expected: str) -> None:
    assert in_window(text) == expected
