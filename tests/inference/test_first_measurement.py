"""Long runs on a machine without a calibration: it is measured first, and only then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import INFER, succeeds
from fakes import Fake, fake_catalogue

from planner.cost_model import BUILT_IN, NOT_MEASURED
from znni.calibration.cost_file import VARIABLE
from znni.calibration.database import CostDatabase
from znni.calibration.measure import Workbench
from znni.calibration.phase_notes import FixedSeconds
from znni.calibration.shapes import Call
from znni.machine.timing import Timing
from znni.plans.primitive import Primitive, convolved


class Rival(Fake):
    """A primitive of another kind."""


CATALOGUE = fake_catalogue(Rival("rival", convolved, 140.0))

pytestmark = pytest.mark.usefixtures("small_case", "database")


@pytest.fixture(autouse=True)
def primitives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds of convolutions, of which the one that is declared faster is slower."""
    for module in ("inference.planning", "calibration.record"):
        monkeypatch.setattr(f"znni.{module}.catalogue", lambda _machine: CATALOGUE)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measurements that only pretend to run; return the primitives that were measured."""
    found: list[str] = []

    def pretend(_: Workbench, primitive: Primitive, call: Call, repeats: int) -> Timing:
        found.append(primitive.name)
        seconds = BUILT_IN.estimate(primitive, *call, primitive.cost(*call)).seconds
        return Timing(((1 if primitive.name == "rival" else 3) * seconds,) * repeats)

    monkeypatch.setattr(Workbench, "measure", pretend)
    return found


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is long enough."""
    monkeypatch.setattr("znni.inference.first_measurement.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("znni.inference.first_measurement.WORTH", 1e-6)


@pytest.mark.usefixtures("long")
def test_a_long_run_measures_its_steps_and_takes_what_is_faster(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[FixedSeconds] = []
    monkeypatch.setattr("znni.inference.session.note", lambda _, taken: noted.append(taken))
    show = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
    before = succeeds(*show)
    assert NOT_MEASURED in before
    assert "rival" not in before
    report = succeeds(*INFER)
    assert measured == ["conv", "conv", "fragments", "rival", "rival"]
    assert "measured on this machine on 20" in report
    after = succeeds(*show)
    assert "rival" in after
    assert re.search(r"nine times of ten.*, predicted \(measured on this machine on 20", after)
    succeeds(*INFER, "--overwrite")
    assert len(measured) == 5, "what is known is not measured again"
    first, second = noted
    assert (first.planning, first.searching) == (None, None), "no run takes as long to plan"
    assert second.planning is not None


def test_a_short_run_measures_nothing(measured: list[str], database: CostDatabase) -> None:
    assert NOT_MEASURED in succeeds(*INFER)
    assert not measured
    assert not database.there


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("options", [("--costs", "built-in"), ("--dry-run",), ("--plan", "p.json")])
def test_runs_by_other_costs_or_by_a_given_plan_measure_nothing(
    options: tuple[str, ...], measured: list[str]
) -> None:
    succeeds("plan", "--net", "tiny.yaml", "--volume", "7,20,23", "--out", "p.json")
    succeeds(*INFER, *options)
    assert not measured


@pytest.mark.usefixtures("long", "measured")
def test_a_run_goes_on_if_its_measurements_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path("no-folder").write_text("")
    monkeypatch.setenv(VARIABLE, "no-folder/costs.sqlite")
    assert "a model of flops and bytes" in succeeds(*INFER)
    assert "measured costs cannot be written" in "".join(caplog.messages)


@pytest.mark.usefixtures("long")
def test_nothing_is_measured_beside_other_programs(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.inference.first_measurement.slowdown", lambda: 1.5)
    assert NOT_MEASURED in succeeds(*INFER)
    assert not measured
