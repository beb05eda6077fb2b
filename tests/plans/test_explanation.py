"""A plan's alternative primitives: what they would change, and how the explanation tells it."""

from __future__ import annotations

from dataclasses import replace

from fake_stages import overhead
from fakes import Fake, fake_catalogue, machine
from random_networks import chain

from planner.cost_model import BUILT_IN
from planner.other_primitives import other_primitives
from planner.search import Search
from znni.core.shapes import Vec3
from znni.plans.plan_text import explanation
from znni.plans.primitive import convolved

NETWORK = chain(("conv", 3), ("pool", 2), ("conv", 2))
ROOM = 10**6
CATALOGUE = fake_catalogue(
    Fake("quick_but_large", convolved, flops=50.0, workspace=ROOM),
    Fake("slow", convolved, flops=300.0),
)


def test_alternatives_are_all_others_with_what_the_plan_would_take_with_them() -> None:
    output, beside = Vec3(12, 12, 12), overhead(1000)
    plan = Search(NETWORK, output, machine(ROOM), CATALOGUE, beside).fastest()[0]
    found = {
        step.operation.name: (step, runs, others)
        for step, runs, others in other_primitives(plan, CATALOGUE, BUILT_IN)
    }
    assert list(found) == ["l0", "l1", "l2"]
    for name in ("l0", "l2"):
        step, _, others = found[name]
        assert step.primitive == "conv"
        assert [other.step.primitive for other in others] == ["quick_but_large", "slow"]
        large, slow = others
        assert large.step.seconds < step.seconds < slow.step.seconds
        assert large.memory > ROOM >= plan.memory.total >= slow.memory
        alone = Search(NETWORK, output, machine(large.memory), {**CATALOGUE}, beside).fastest()[0]
        assert alone.seconds < plan.seconds
    told = explanation(found.values()).splitlines()
    (chosen,) = [line for line in told if line.startswith("l2")]
    assert chosen.split()[:2] == ["l2", "conv"]
    assert chosen.endswith("chosen")
    after = told[told.index(chosen) + 1]
    assert "quick_but_large" in after
    assert "0." in after
    assert after.endswith("of 977 KiB")


def test_a_faster_primitive_that_fits_takes_longer_to_prepare() -> None:
    plan = Search(NETWORK, Vec3(12, 12, 12), machine(ROOM), CATALOGUE, overhead(1000)).fastest()[0]
    step, runs, (faster, *_) = next(other_primitives(plan, CATALOGUE, BUILT_IN))
    memory = replace(step.cost.memory, resident=step.cost.memory.resident + 2048)
    faster = replace(
        faster, memory=1, step=replace(faster.step, cost=replace(faster.step.cost, memory=memory))
    )
    _, after = explanation([(step, runs, [faster])]).splitlines()
    assert after.endswith("x the time, but 2 KiB more to prepare once")
    slower = replace(faster, step=replace(faster.step, seconds=2 * step.seconds))
    assert explanation([(step, runs, [slower])]).endswith("2.00x the time")
