"""Calibration: the choice of calls, their measurement, and its order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from calibration_cases import ALLOWED, CATALOGUE, FEW, campaign
from fakes import two_cores
from layers import MACHINE, does

from planner.cost_model import BUILT_IN
from znni.calibration.campaign import calibrate
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.effort import FULL, QUICK
from znni.calibration.measure import Workbench
from znni.calibration.shapes import Call, designed_calls
from znni.network.layers import Conv
from znni.primitives.catalogue import catalogue

EVERY = catalogue(MACHINE)


@pytest.mark.slow_cases
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
    many, direct = replace(FULL, calls=60), catalogue(two_cores())["direct"]
    found = designed_calls(direct, many, ALLOWED)
    assert len(found) == many.calls
    assert designed_calls(direct, FULL, ALLOWED) == found[: FULL.calls]
    convolutions = [operation for operation, _ in found if isinstance(operation, Conv)]
    assert {1, 9} <= {conv.kernel.x for conv in convolutions}
    assert {1, 24, 80} <= {conv.in_features for conv in convolutions if conv.is_dense}
    assert not all(conv.is_dense for conv in convolutions)
    assert {1, 8, 64} == {shape.n for _, shape in found}


def test_each_primitive_has_calls_of_its_own() -> None:
    tile, transient = (
        set(designed_calls(EVERY[name], FULL, ALLOWED))
        for name in ("fft_tiled_16", "fft_tiled_16_transient")
    )
    assert not tile & transient


@pytest.mark.slow
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
