"""A first measurement: which calls tell the speed of a plan's steps, and what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from fakes import Fake, fake_catalogue, machine
from planner_cases import NETWORK, NO_OVERHEAD

from planner.cost_model import BUILT_IN, built_in_seconds
from planner.search import Search
from znni.calibration.choice import cost_model
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.plan_measurement import CALL_SECONDS, measure, unmeasured_calls
from znni.calibration.record import record
from znni.calibration.shapes import Call
from znni.core.shapes import Vec3
from znni.plans.composition import InTurn, PieceBy
from znni.plans.plan import Plan
from znni.plans.primitive import Primitive, convolved


class Rival(Fake):
    """A primitive of another kind."""


class Slow(Fake):
    """A primitive of a third kind."""


CATALOGUE = fake_catalogue(Rival("rival", convolved, 140.0), Slow("slow", convolved, 160.0))


def fastest() -> Plan:
    return Search(NETWORK, Vec3(12, 20, 24), machine(10**9), CATALOGUE, NO_OVERHEAD).fastest()[0]


def nominal(primitive: Primitive, call: Call) -> float:
    return built_in_seconds(primitive, primitive.cost(*call))


def names(calls: Sequence[tuple[Primitive, Call]]) -> list[str]:
    return [primitive.name for primitive, _ in calls]


def test_the_longest_steps_come_first_and_then_their_rivals() -> None:
    plan = fastest()
    own, rivals = unmeasured_calls(plan, CATALOGUE, BUILT_IN)
    convolutions = sum(step.conv is not None for step in plan.steps)
    assert names(own) == ["conv"] * convolutions
    assert names(rivals) == ["rival"] * convolutions
    runs = {step.operation: n * step.seconds for it, n in plan.runs() for step in it.steps}
    taken = [runs[call.operation] for _, call in own]
    assert taken == sorted(taken, reverse=True)
    assert {call for _, call in [*own, *rivals]} == {
        Call(step.operation, step.shape_in) for step in plan.steps if step.conv
    }


def test_a_long_call_is_measured_on_smaller_images_with_whole_rows() -> None:
    device = replace(machine().host, flops=5e6)
    slow = {name: replace(it, device=device) for name, it in CATALOGUE.items()}
    quick, parts = (unmeasured_calls(fastest(), it, BUILT_IN).own for it in (CATALOGUE, slow))
    assert names(parts) == names(quick)
    for (primitive, part), (_, whole) in zip(parts, quick, strict=True):
        assert primitive.out_shape(*part) is not None
        assert nominal(primitive, part) <= CALL_SECONDS < nominal(primitive, whole)
        assert part == Call(whole.operation, part.shape)
        assert part.shape[:2] == whole.shape[:2]
        assert part.shape.x == whole.shape.x


def test_each_primitive_of_a_step_in_pieces_is_measured() -> None:
    plan = fastest()
    segments = [
        replace(
            segment,
            steps=tuple(
                replace(step, primitive=InTurn((PieceBy(1, 1, "rival"), PieceBy(1, 2, "slow"))))
                if step.conv
                else step
                for step in segment.steps
            ),
        )
        for segment in plan.segments
    ]
    calls = unmeasured_calls(replace(plan, segments=tuple(segments)), CATALOGUE, BUILT_IN).own
    assert {(it.name, call.shape.n) for it, call in calls} >= {("rival", 1), ("slow", 2)}
    assert set(names(calls[:2])) == {"rival", "slow"}, "each kind comes once before one comes twice"


@pytest.mark.usefixtures("twice_as_slow")
def test_what_was_measured_is_kept_and_not_measured_again(database: CostDatabase) -> None:
    plan, here = fastest(), Conditions.of(CATALOGUE["conv"].device)
    (primitive, call), *_ = unmeasured_calls(plan, CATALOGUE, BUILT_IN).own
    measure(primitive, call, quick=True)
    (kept,) = database.measured(here)
    assert (kept.primitive, kept.shape, kept.times) == (primitive.name, call.shape, 1)
    assert kept.seconds == 2 * nominal(primitive, call)
    own, rivals = unmeasured_calls(plan, CATALOGUE, cost_model(CATALOGUE))
    assert not own
    assert set(names(rivals)) == {"rival"}
    record([(CATALOGUE["rival"], call, 1.0)], database)
    assert unmeasured_calls(plan, CATALOGUE, cost_model(CATALOGUE)) == ([], [])
