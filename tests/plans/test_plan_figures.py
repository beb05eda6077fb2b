"""The figures of a plan: its error, and the work that it wastes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import Fake, fake_catalogue, machine
from planner_cases import CHOICES, CONV, CONVOLUTIONS, NETWORK, NO_OVERHEAD

from planner.cost_model import BUILT_IN, NOT_MEASURED, CostModel, Factor, Factors
from planner.search import Search
from znni.core.shapes import Shape5, Vec3
from znni.core.text import duration
from znni.network.layers import Operation, Pool
from znni.network.network import Network
from znni.plans.band import BUILT_IN_ERROR, LESS, MEASURED_HERE, MORE, NOT_CALIBRATED
from znni.plans.plan import Plan
from znni.plans.plan_text import plan_table
from znni.plans.primitive import convolved_and_pooled


def test_wasted_work_counts_borders_and_overlap() -> None:
    one = Network.chain("one", 1, (CONV,))
    plan = Search(one, Vec3(10, 10, 10), machine(10**9), fake_catalogue(), NO_OVERHEAD).fastest()[0]
    assert plan.patch == (10, 10, 10)
    assert plan.wasted_work == pytest.approx(0)
    deep = Search(NETWORK, Vec3(12, 20, 24), machine(10**9), CHOICES, NO_OVERHEAD).fastest()[0]
    assert 0 < deep.wasted_work < 1


def test_wasted_work_counts_a_convolution_repeated_for_every_offset_of_its_pool() -> None:
    pooled = Network.chain("pooled", 1, (CONV, Pool("pool1", Vec3(2, 2, 2))))
    fused = {"fused": Fake("fused", convolved_and_pooled)}
    plan = Search(pooled, Vec3(10, 10, 10), machine(10**9), fused, NO_OVERHEAD).fastest()[0]
    assert plan.patch == (10, 10, 10)
    assert plan.segments[0].shifts == 8
    assert plan.wasted_work == pytest.approx(7 / 8)
    assert "conv1+pool1" in plan_table(plan)


def test_any_name_stands_in_the_table() -> None:
    odd = replace(NETWORK, name="a\0b")
    plan = Search(odd, Vec3(12, 20, 24), machine(10**9), CHOICES, NO_OVERHEAD).fastest()[0]
    assert "network       a\0b" in plan_table(plan)
    assert plan_table(plan).count(" s to start and end") == 1


class Preferring(CostModel):
    """A model by which all primitives but one take a thousand times as long as they say."""

    source = "a preference"

    def __init__(self, name: str) -> None:
        self.name = name

    def factors(self, _operation: Operation, _shape: Shape5) -> Factors:
        return lambda it: Factor(1.0, 0.25) if it.name == self.name else Factor(1000.0, 0.5)


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", [fake.name for fake in CONVOLUTIONS])
def test_the_model_that_is_given_decides(name: str) -> None:
    output = Vec3(12, 20, 24)
    model = Preferring(name)
    plan = Search(NETWORK, output, machine(10**9), CHOICES, NO_OVERHEAD, model).fastest()[0]
    steps = [step for segment in plan.segments for step in segment.steps if step.conv]
    assert {(step.primitive, step.error) for step in steps} == {(name, 0.25)}
    for step in steps:
        given = CHOICES[name], step.operation, step.shape_in, step.cost
        assert step.seconds == BUILT_IN.estimate(*given).seconds
    assert plan.costs == "a preference"


@pytest.mark.slow
def test_a_plans_error_is_that_of_its_steps_by_their_time() -> None:
    plan = Search(
        NETWORK, Vec3(12, 20, 24), machine(10**9), CHOICES, NO_OVERHEAD, Preferring("medium")
    ).fastest()[0]
    times = [(n * s.seconds, s.error) for segment, n in plan.runs() for s in segment.steps]
    assert len({error for _, error in times}) == 2
    total = sum(seconds for seconds, _ in times)
    assert plan.error == pytest.approx(sum(s * error for s, error in times) / total)
    there = replace(plan, machine=replace(plan.machine, absent=True))
    table = str(there)
    assert table == plan_table(there)
    assert f"voxels/s +- {plan.error:.0%} predicted" in table
    assert f"+- {plan.error:.0%} predicted (a preference)" in table
    assert {"25%", "50%"} <= set(table.split())
    default = Search(NETWORK, Vec3(12, 20, 24), machine(10**9), CHOICES, NO_OVERHEAD).fastest()[0]
    assert default.costs == NOT_MEASURED
    band = NOT_CALIBRATED.around(default.seconds)
    assert f"{duration(default.seconds)}, {band}, predicted ({NOT_MEASURED})\n" in str(default)
    assert "+- 30%" not in str(default)
    busy = replace(default, slowdown=4.0)
    most = duration(4.0 * NOT_CALIBRATED.most * default.seconds)
    assert f" and {most} nine times of ten beside the programs that run now, predicted" in str(busy)
    assert Plan.from_json(busy.to_json()) == busy
    there = replace(default, machine=replace(default.machine, absent=True))
    assert f"{duration(default.seconds)} +- 30% predicted ({NOT_MEASURED})\n" in str(there)
    assert default.error == pytest.approx(BUILT_IN_ERROR)


@pytest.mark.parametrize("measured", [(), ("conv1",), ("conv1", "conv2", "conv3")])
def test_the_band_is_narrower_for_the_share_that_was_measured(measured: tuple[str, ...]) -> None:
    plan = Search(NETWORK, Vec3(12, 20, 24), machine(10**9), CHOICES, NO_OVERHEAD).fastest()[0]
    segments = tuple(
        replace(
            segment,
            steps=tuple(
                replace(step, error=0.1)
                if {it.name for it in step.layers} & set(measured)
                else step
                for step in segment.steps
            ),
        )
        for segment in plan.segments
    )
    known = replace(plan, segments=segments, costs=f"{MEASURED_HERE} on 2026-11-29")
    runs = [(n * s.seconds, s.error) for segment, n in known.runs() for s in segment.steps]
    total = sum(seconds for seconds, _ in runs)
    share = sum(t for t, error in runs if error >= BUILT_IN_ERROR) / total
    assert (share == 1.0) is not bool(measured)
    least, most = 0.1 * LESS, 0.1 * MORE
    assert known.band == pytest.approx(
        (1 - 0.3 * share - least * (1 - share), 1 + 1.5 * share + most * (1 - share), 1.0)
    )
    assert f"{duration(known.seconds)}, {known.band.around(known.seconds)}, predicted" in str(known)
