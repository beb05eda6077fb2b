"""Calibration: what is measured, how, and what plans make of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import get_args

import pytest
from command_line import refused, succeeds, write_case, znni
from fakes import Fake, fake_catalogue
from layers import MACHINE, does

from planner.costs import BUILT_IN, NOT_MEASURED
from znni.calibration.campaign import Campaign, calibrate
from znni.calibration.choice import cost_model
from znni.calibration.conditions import Conditions
from znni.calibration.database import VARIABLE, CostDatabase
from znni.calibration.measure import Workbench
from znni.calibration.model import MeasuredModel
from znni.calibration.record import record
from znni.calibration.regression import NOISE, PRIOR
from znni.calibration.shapes import FULL, QUICK, Call, Effort, designed_calls
from znni.errors import InvalidInput
from znni.handling import READ, HandlingTimes, Taken
from znni.network import Conv
from znni.options import OutputType
from znni.planning import plan
from znni.primitive import Primitive, catalogue, convolved, pooled
from znni.shapes import Shape5, Vec3
from znni.stopping import Stopped
from znni.timing import Timing

CATALOGUE = fake_catalogue()
EVERY = catalogue(MACHINE)
ALLOWED = 2**30
FEW = Effort(6, shortest=0.001, longest=0.1, resident=2**20, repeats=3, budget=1e9)


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CostDatabase:
    """An empty one, the default for all that plan."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "costs.sqlite"))
    monkeypatch.chdir(tmp_path)
    return CostDatabase()


@pytest.fixture
def twice_as_slow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Call]]:
    """Measurements that only pretend to run, and give twice what the built-in model predicts.

    Returns:
        What was measured so far.
    """
    measured: list[tuple[str, Call]] = []

    def pretend(_: Workbench, primitive: Primitive, call: Call, repeats: int) -> Timing:
        measured.append((primitive.name, call))
        predicted = BUILT_IN.estimate(primitive, *call, primitive.cost(*call))
        return Timing((2 * predicted.seconds,) * repeats)

    monkeypatch.setattr(Workbench, "measure", pretend)
    return measured


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("planning", "calibration.campaign"):
        monkeypatch.setattr(f"znni.{module}.catalogue", lambda _machine: CATALOGUE)
    few = {dtype: Taken(1e-9, 1e-9) for dtype in get_args(OutputType)}
    times = HandlingTimes(1e-9, 1e-9, {size: Taken(1e-9, 1e-9) for size in READ}, few)
    monkeypatch.setattr("znni.handling.measure_handling", lambda _threads: times)


def no_progress(_done: int, _planned: int) -> None:
    pass


def campaign(*primitives: Primitive, effort: Effort = FEW) -> Campaign:
    return Campaign(primitives or CATALOGUE.values(), effort, ALLOWED)


@pytest.mark.parametrize("name", EVERY)
def test_every_primitive_has_calls_within_the_limits(name: str) -> None:
    primitive, allowed = EVERY[name], 4 * ALLOWED
    found = designed_calls(primitive, QUICK, allowed)
    assert len(set(found)) == len(found) == QUICK.calls
    for call in found:
        cost = primitive.cost(*call)
        assert primitive.out_shape(*call) is not None
        predicted = BUILT_IN.estimate(primitive, *call, cost).seconds
        assert QUICK.shortest <= predicted <= QUICK.longest
        assert cost.memory.resident <= QUICK.resident
        rest = cost.memory.working - call.shape.nbytes
        assert 3 * max(call.shape.nbytes, rest, cost.memory.resident) <= allowed


def test_calls_are_of_all_kinds_and_the_first_are_a_sample_of_them() -> None:
    many = replace(FULL, calls=60)
    found = designed_calls(EVERY["direct"], many, ALLOWED)
    assert len(found) == many.calls
    assert designed_calls(EVERY["direct"], FULL, ALLOWED) == found[: FULL.calls]
    convolutions = [operation for operation, _ in found if isinstance(operation, Conv)]
    assert {1, 9} <= {conv.kernel.x for conv in convolutions}
    assert {1, 24, 80} == {conv.in_features for conv in convolutions}
    assert {1, 8, 64} == {shape.n for _, shape in found}


def test_each_primitive_has_calls_of_its_own() -> None:
    tile, transient = (
        set(designed_calls(EVERY[name], FULL, ALLOWED))
        for name in ("fft_tiled_16", "fft_tiled_16_transient")
    )
    assert not tile & transient


def test_little_memory_leaves_calls_out() -> None:
    primitive = EVERY["direct"]
    for operation, shape in designed_calls(primitive, FULL, 2**20):
        assert primitive.cost(operation, shape).memory.working <= 2**20
    assert designed_calls(primitive, FULL, 0) == []


@pytest.mark.parametrize("name", ["direct", "max_pooling", "direct_pooled"])
def test_a_call_is_built_and_timed(name: str) -> None:
    call = Call(*does(EVERY[name]))
    timing = Workbench([(EVERY[name], call)]).measure(EVERY[name], call, repeats=3)
    assert len(timing.seconds) == 3
    assert timing.median > 0


def test_all_primitives_are_measured_in_turn_and_kept(
    twice_as_slow: list[tuple[str, Call]], database: CostDatabase
) -> None:
    told: list[tuple[int, int]] = []
    calibrate([campaign()], database, lambda *shares: told.append(shares))
    count = len(twice_as_slow)
    assert count == FEW.calls * len(CATALOGUE)
    assert told == [(done, count) for done in range(1, count + 1)]
    for first in range(0, count, len(CATALOGUE)):
        turn = twice_as_slow[first : first + len(CATALOGUE)]
        assert [name for name, _ in turn] == list(CATALOGUE)
    kept = database.measured(Conditions.of(CATALOGUE["conv"].device))
    assert len(kept) == count
    assert {(m.primitive, m.operation, m.shape) for m in kept} == {
        (name, *call) for name, call in twice_as_slow
    }


def test_time_is_up_only_once_there_is_a_call_of_each(
    twice_as_slow: list[tuple[str, Call]], database: CostDatabase
) -> None:
    hasty = replace(FEW, calls=20, budget=0.0)
    told: list[tuple[int, int]] = []
    calibrate([campaign(effort=hasty)], database, lambda *shares: told.append(shares))
    assert [name for name, _ in twice_as_slow] == list(CATALOGUE)
    assert told[-1] == (len(CATALOGUE), len(CATALOGUE))


def model_of(database: CostDatabase, primitives: dict[str, Primitive]) -> MeasuredModel:
    model = cost_model(primitives, "measured")
    assert isinstance(model, MeasuredModel)
    assert database.path.exists()
    return model


class OtherKind(Fake):
    """What no measurement of a ``Fake`` tells more of than it tells of the machine."""


def test_the_model_predicts_what_was_measured_and_the_rest_from_it(
    twice_as_slow: list[tuple[str, Call]], database: CostDatabase
) -> None:
    alike = Fake("alike", convolved, flops=70.0)
    other = OtherKind("other", convolved, flops=70.0)
    calibrate([campaign()], database, no_progress)
    model = model_of(database, {**CATALOGUE, "alike": alike, "other": other})
    assert model.source.startswith("measured on this machine on 20")
    assert model.source.endswith(", 3 of 5 primitives")
    for call in [call for name, call in twice_as_slow if name == "conv"]:
        errors = []
        for primitive in (CATALOGUE["conv"], alike, other):
            cost = primitive.cost(*call)
            seconds, error = model.estimate(primitive, *call, cost)
            built_in = BUILT_IN.estimate(primitive, *call, cost).seconds
            assert seconds == pytest.approx(2 * built_in * exp(error**2 / 2), rel=1e-6)
            errors.append(error)
        assert NOISE < errors[0] < errors[1] < errors[2]
        assert errors[2] == pytest.approx((PRIOR + NOISE**2) ** 0.5)
    known = {fitted.primitive: fitted for fitted in model.known()}
    assert known["other"].error is None
    assert known["other"].built_in_error is None
    assert known["conv"].measurements == FEW.calls
    assert known["conv"].built_in_error == pytest.approx(0.693, abs=1e-3)
    assert known["conv"].error == pytest.approx(0, abs=1e-6)


def test_the_latest_measurements_count(
    database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.calibration.model.MOST_MEASUREMENTS", 5)
    fake = Fake("conv", convolved)
    record(slow(fake, 4.0), database)
    record([(fake, LATER, 2 * built_in_seconds(fake, LATER))], database)
    (known,) = model_of(database, {"conv": fake}).known()
    assert known.measurements == 5
    assert known.built_in_error == pytest.approx(((4 * 1.386**2 + 0.693**2) / 5) ** 0.5, rel=1e-3)


def test_other_versions_and_calls_no_longer_done_do_not_count(
    twice_as_slow: list[tuple[str, Call]], database: CostDatabase
) -> None:
    calibrate([campaign(CATALOGUE["conv"])], database, no_progress)
    assert len(twice_as_slow) == FEW.calls
    assert model_of(database, CATALOGUE).source.endswith("1 of 3 primitives")
    for changed in (Fake("conv", convolved, version=2), Fake("conv", pooled)):
        with pytest.raises(InvalidInput, match="nothing was measured yet on fake with 1 thread,"):
            cost_model({"conv": changed}, "measured")
        assert cost_model({"conv": changed}).source == NOT_MEASURED


def test_without_measurements_the_built_in_model_serves_and_says_so() -> None:
    assert cost_model(CATALOGUE).source == NOT_MEASURED
    assert cost_model(CATALOGUE, "built-in").source == "a model of flops and bytes"
    with pytest.raises(InvalidInput, match=r"nothing was measured yet .* run znni calibrate"):
        cost_model(CATALOGUE, "measured")


def test_a_damaged_file_is_told_never_passed_over(
    database: CostDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    database.path.write_text("damaged" * 1000)
    with pytest.raises(InvalidInput, match="measured costs cannot be read"):
        cost_model(CATALOGUE, "measured")
    assert "measured costs cannot be read" in cost_model(CATALOGUE).source
    assert "measured costs cannot be read" in caplog.text
    assert cost_model(CATALOGUE, "built-in").source == "a model of flops and bytes"


LATER = Call(Conv("conv", 1, 1, Vec3.of(5), "relu"), Shape5(1, 1, 20, 20, 30))


def built_in_seconds(primitive: Fake, call: Call) -> float:
    return BUILT_IN.estimate(primitive, *call, primitive.cost(*call)).seconds


def slow(primitive: Fake, factor: float) -> Iterator[tuple[Primitive, Call, float]]:
    """Some calls that took so much longer than predicted."""
    for extent in range(8, 20):
        call = Call(Conv("conv", 1, 1, Vec3.of(3), "relu"), Shape5(1, 1, extent, 20, 30))
        yield primitive, call, factor * built_in_seconds(primitive, call)


def test_what_was_measured_decides_what_is_planned(
    database: CostDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_case(tmp_path)
    liked, real = Fake("liked", convolved, flops=50.0), Fake("real", convolved, flops=60.0)
    primitives = fake_catalogue(liked, real)
    del primitives["conv"]
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: primitives)
    assert '"primitive": "liked"' in plan("tiny.yaml", (7, 20, 23)).to_json()
    record(slow(liked, 3.0), database)
    record(slow(real, 1.0), database)
    measured = plan("tiny.yaml", (7, 20, 23), ram="4GiB", costs="measured")
    assert '"primitive": "real"' in measured.to_json()
    assert '"primitive": "liked"' not in measured.to_json()
    assert measured == plan("tiny.yaml", (7, 20, 23), ram="4GiB")
    assert '"primitive": "liked"' in plan("tiny.yaml", (7, 20, 23), costs="built-in").to_json()


CALIBRATE = ("calibrate", "--quick", "--threads", 1)


@pytest.mark.usefixtures("fakes", "twice_as_slow")
def test_calibrating_and_planning_from_it(tmp_path: Path) -> None:
    write_case(tmp_path)
    show = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
    infer = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5", "--overwrite")
    assert f"predicted ({NOT_MEASURED})\n" in succeeds(*show)
    assert NOT_MEASURED in succeeds(*infer)
    assert "run znni calibrate" in refused(*show, "--costs", "measured")
    by_primitive, handling = succeeds(*CALIBRATE).split("\n\n")
    header, *rows = by_primitive.splitlines()
    assert handling.splitlines()[0].split() == ["memory", "touched", "first", "1,000", "MB/s"]
    assert header.split()[:3] == ["primitive", "measurements", "error"]
    assert [row.split()[:2] for row in rows] == [[name, f"{QUICK.calls}"] for name in CATALOGUE]
    assert all(float(row.split()[2].rstrip("%")) <= 5 for row in rows)
    for options in ((), ("--costs", "measured")):
        table = succeeds(*show, *options)
        assert "predicted (measured on this machine on 20" in table
        said = re.search(r"\+- (\d+)% predicted", table)
        assert said
        assert 0 < int(said[1]) <= 100 * (PRIOR + NOISE**2) ** 0.5
        assert "predicted from measured on this machine on 20" in succeeds(*infer, *options)
    assert "predicted (a model of flops and bytes)\n" in succeeds(*show, "--costs", "built-in")
    assert "'guessed' is not one of" in refused(*show, "--costs", "guessed")


@pytest.mark.usefixtures("fakes")
def test_calibrating_some_primitives_anew(
    twice_as_slow: list[tuple[str, Call]], database: CostDatabase
) -> None:
    succeeds(*CALIBRATE)
    here = Conditions.of(CATALOGUE["conv"].device)
    before = len(database.measured(here))
    record(slow(Fake("conv", convolved), 9.0), database)
    record(slow(Fake("pool", convolved), 9.0), database)
    assert len(database.measured(here)) == before + 24
    twice_as_slow.clear()
    (row,) = succeeds(*CALIBRATE, "--only", "conv", "--forget").splitlines()[1:]
    assert row.split()[:2] == ["conv", f"{QUICK.calls}"]
    assert {name for name, _ in twice_as_slow} == {"conv"}
    assert len(database.measured(here)) == before + 12
    assert refused(*CALIBRATE, "--only", "cnov") == (
        "this machine has no primitive 'cnov'; choose from conv, fragments, pool"
    )


@pytest.mark.usefixtures("fakes")
def test_a_calibration_that_is_stopped_keeps_what_it_measured(
    twice_as_slow: list[tuple[str, Call]],
    database: CostDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend = Workbench.measure

    def stopped(workbench: Workbench, primitive: Primitive, call: Call, repeats: int) -> Timing:
        if len(twice_as_slow) == 7:
            raise Stopped(signal.SIGINT)
        return pretend(workbench, primitive, call, repeats)

    monkeypatch.setattr(Workbench, "measure", stopped)
    outcome = znni(*CALIBRATE)
    assert outcome.code == 130
    assert f"stopped by SIGINT; 7 of {3 * QUICK.calls} measurements are kept in" in outcome.err
    assert len(database.measured(Conditions.of(CATALOGUE["conv"].device))) == 7


@pytest.mark.usefixtures("fakes")
def test_a_file_that_cannot_be_written_stops_a_calibration(
    twice_as_slow: list[tuple[str, Call]], database: CostDatabase
) -> None:
    database.path.write_text("damaged" * 1000)
    assert "measured costs cannot be written" in refused(*CALIBRATE)
    assert len(twice_as_slow) == 1


@pytest.mark.usefixtures("fakes")
def test_where_nothing_can_be_measured_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.calibration.campaign.designed_calls", lambda *_: [])
    assert "no call of conv is short enough" in refused(*CALIBRATE, "--only", "conv")
