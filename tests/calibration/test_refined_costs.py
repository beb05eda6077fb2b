"""Times of real runs: which are kept, and when they are added to a calibration."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path

import pytest
from command_line import succeeds, znni
from fakes import fake_catalogue

from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase, today
from znni.calibration.record import StepTimes, record, record_steps, refine
from znni.calibration.shapes import Call
from znni.core.shapes import Shape5, Vec3
from znni.inference.planning import plan
from znni.network.layers import Conv
from znni.plans.plan import Plan
from znni.plans.segments import Step

CATALOGUE = fake_catalogue()
HERE = Conditions.of(CATALOGUE["conv"].device)
CALIBRATED = Call(Conv("conv", 1, 1, Vec3.of(3), "relu"), Shape5(1, 1, 9, 9, 9))

pytestmark = pytest.mark.usefixtures("small_case", "database")


@pytest.fixture(autouse=True)
def primitives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use primitives that take no time to plan for or to record."""
    for module in ("inference.planning", "calibration.record"):
        monkeypatch.setattr(f"znni.{module}.catalogue", lambda _machine: CATALOGUE)


def several_patches() -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the steps of a plan of small patches, and the command that runs it over several."""
    succeeds("plan", "--net", "tiny.yaml", "--volume", "7,10,12", "--out", "plan.json")
    made = Plan.from_json(Path("plan.json").read_bytes())
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json", "--out", "out.h5")
    return made.steps, (*run, "--overwrite")


def test_what_steps_took_is_kept(database: CostDatabase) -> None:
    made = plan("tiny.yaml", (7, 20, 23))
    steps = made.steps
    record_steps([(step, 0.125) for step in steps], made.machine, database)
    assert [(m.primitive, m.shape, m.seconds, m.day) for m in database.measured(HERE)] == [
        (step.primitive, step.shape_in, 0.125, today()) for step in steps
    ]


@pytest.mark.parametrize(("calls", "fast"), [(1, 1), (3, 1), (10, 2), (35, 4)])
def test_a_fast_call_of_a_step_counts_and_never_the_first(calls: int, fast: int) -> None:
    first, second, *_ = plan("tiny.yaml", (7, 20, 23)).steps
    times = StepTimes()
    times(first, 0.5)
    for seconds in range(calls, 0, -1):
        times(first, float(seconds))
    times(second, 100.0)
    assert list(times.warm()) == [(first, float(fast))]


def test_a_step_is_hashed_once_and_equal_ones_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    step, *_ = plan("tiny.yaml", (7, 20, 23)).steps
    equal, hashed, times = replace(step), list[int](), StepTimes()
    hash_of = Step.__hash__

    def noted(self: Step) -> int:
        hashed.append(id(self))
        return hash_of(self)

    monkeypatch.setattr(Step, "__hash__", noted)
    times(step, 100.0)
    once = len(hashed)
    for _ in range(3):
        times(step, 1.0)
    assert len(hashed) == once
    times(equal, 3.0)
    assert list(times.warm()) == [(step, 1.0)]


def test_runs_refine_a_calibration_if_there_is_one(
    database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.calibration.record.SURE", 0.0)  # no time is as predicted by chance
    steps, run = several_patches()
    succeeds(*run)
    assert database.measured(HERE) == []
    record([(CATALOGUE["conv"], CALIBRATED, 0.125)], database)
    (calibrated,) = database.measured(HERE)
    succeeds(*run, "--costs", "built-in")
    assert database.measured(HERE) == [calibrated]
    succeeds(*run)
    kept, *added = database.measured(HERE)
    assert kept == calibrated
    assert [(m.primitive, m.shape) for m in added] == [(s.primitive, s.shape_in) for s in steps]


@pytest.mark.parametrize(("error", "known"), [(0.3, 0.29), (0.1, 0.19)])
def test_times_that_were_predicted_well_are_not_kept(
    database: CostDatabase, error: float, known: float
) -> None:
    """So the plans that follow from the measurements stay valid."""
    record([(CATALOGUE["conv"], CALIBRATED, 0.125)], database)
    made = plan("tiny.yaml", (7, 20, 23))
    step = replace(made.steps[0], seconds=1.0, error=error)
    for off in (-known, known):
        refine([(step, exp(off))], made.machine)
    assert len(database.measured(HERE)) == 1
    refine([(step, exp(-known - 0.02))], made.machine)
    assert len(database.measured(HERE)) == 2


def test_times_of_costs_that_say_their_own_seconds_are_not_kept(database: CostDatabase) -> None:
    """They change no prediction, so every run would keep some more."""
    record([(CATALOGUE["conv"], CALIBRATED, 0.125)], database)
    made = plan("tiny.yaml", (7, 20, 23))
    step = made.steps[0]
    told = replace(step, cost=replace(step.cost, seconds=step.seconds))
    refine([(told, 4 * step.seconds)], made.machine)
    assert len(database.measured(HERE)) == 1


def test_a_run_that_cannot_refine_says_so_and_succeeds(
    database: CostDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    _, run = several_patches()
    database.path.write_text("damaged" * 1000)
    assert znni(*run).code == 0
    assert "measured costs cannot be read" in caplog.text
