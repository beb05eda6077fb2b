"""Plans with measured costs: predictions for measured calls, and for others."""

from __future__ import annotations

from math import exp

import pytest
from calibration_cases import CATALOGUE, FEW, built_in_seconds, campaign, no_progress, slow
from fakes import Fake, fake_catalogue

from planner.cost_model import BUILT_IN, NOT_MEASURED
from znni.calibration.campaign import calibrate
from znni.calibration.choice import cost_model
from znni.calibration.database import CostDatabase
from znni.calibration.model import MeasuredModel
from znni.calibration.record import record
from znni.calibration.regression import NOISE, PRIOR
from znni.calibration.shapes import Call
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.inference.planning import plan
from znni.network.layers import Conv
from znni.plans.primitive import Primitive, convolved, pooled

pytestmark = pytest.mark.usefixtures("database")

LATER = Call(Conv("conv", 1, 1, Vec3.of(5), "relu"), Shape5(1, 1, 20, 20, 30))


def model_of(database: CostDatabase, primitives: dict[str, Primitive]) -> MeasuredModel:
    model = cost_model(primitives, "measured")
    assert isinstance(model, MeasuredModel)
    assert database.path.exists()
    return model


class OtherKind(Fake):
    """A kind of primitive that shares nothing with ``Fake`` but the machine."""


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


@pytest.mark.usefixtures("small_case")
def test_what_was_measured_decides_what_is_planned(
    database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    liked, real = Fake("liked", convolved, flops=50.0), Fake("real", convolved, flops=60.0)
    primitives = fake_catalogue(liked, real)
    del primitives["conv"]
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _machine: primitives)
    assert '"primitive": "liked"' in plan("tiny.yaml", (7, 20, 23)).to_json()
    record(slow(liked, 3.0), database)
    record(slow(real, 1.0), database)
    measured = plan("tiny.yaml", (7, 20, 23), ram="4GiB", costs="measured")
    assert '"primitive": "real"' in measured.to_json()
    assert '"primitive": "liked"' not in measured.to_json()
    assert measured == plan("tiny.yaml", (7, 20, 23), ram="4GiB")
    assert '"primitive": "liked"' in plan("tiny.yaml", (7, 20, 23), costs="built-in").to_json()
