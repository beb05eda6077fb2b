"""Notes of kernels that are compiled: what a first run takes longer, and later ones do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import INFER, succeeds

import znni
from znni.calibration import compiled_notes
from znni.calibration.compiled_notes import about_compiling, note_compiled
from znni.inference.planning import plan
from znni.plans.composition import InTurn, PieceBy
from znni.plans.plan import Plan

SHOW = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
FIRST = "\nfirst run     about 30.0 s more to compile kernels, once on this machine\n"

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


@pytest.fixture(autouse=True)
def nothing_compiled(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache is empty, and each step takes 10 s."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder))
    monkeypatch.setattr(compiled_notes, "STEP_SECONDS", 10.0)


def test_only_a_first_run_is_told_to_compile() -> None:
    for _ in range(2):  # a text that is kept would not say so
        assert FIRST in succeeds(*SHOW)
    assert FIRST in succeeds(*INFER, "--dry-run")
    assert "first run" not in succeeds(*SHOW, "--machine", "laptop")
    succeeds(*INFER)
    assert "first run" not in succeeds(*SHOW)


def test_a_stopped_run_has_compiled_its_kernels() -> None:
    def stop(done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    made = plan("tiny.yaml", (7, 20, 23))
    assert about_compiling(made)
    with pytest.raises(KeyboardInterrupt):
        znni.infer("volume.h5", "tiny.yaml", "out.zarr", progress=stop)
    assert about_compiling(made) == ""


def test_steps_that_differ_in_names_and_shapes_share_kernels() -> None:
    made = plan("tiny.yaml", (7, 20, 23))
    note_compiled(plan("tiny.yaml", (9, 30, 40)))
    assert about_compiling(made) == ""
    pieces = InTurn((PieceBy(1, 1, "other"), PieceBy(2, 1, "conv")))
    assert about_compiling(first_by(made, pieces)).startswith("about 10.0 s more")
    note_compiled(first_by(made, pieces))
    assert about_compiling(first_by(made, "other")) == ""


def test_a_short_time_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_notes, "STEP_SECONDS", 0.6)
    assert about_compiling(plan("tiny.yaml", (7, 20, 23))) == ""


def first_by(made: Plan, chosen: str | InTurn) -> Plan:
    """Return a plan whose first step is computed by other primitives."""
    first, *others = made.segments
    step, *steps = first.steps
    segment = replace(first, steps=(replace(step, primitive=chosen), *steps))
    return replace(made, segments=(segment, *others))
