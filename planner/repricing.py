"""The predicted time of a plan by another model of times."""

from __future__ import annotations

from dataclasses import replace

from planner.cost_model import CostModel, Estimate
from planner.limits import time_of_run
from planner.search import Search
from znni.core.shapes import Shape5
from znni.plans.composition import InTurn
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.plans.segments import Step


def repriced(plan: Plan, search: Search) -> Plan:
    """Return a plan with the times that a search's model predicts.

    Args:
        plan: a plan of a search that differs from this one in its model alone.
        search: the search.
    """
    segments = tuple(
        replace(
            segment,
            steps=tuple(_repriced(step, search.catalogue, search.model) for step in segment.steps),
        )
        for segment in plan.segments
    )
    changed = replace(plan, segments=segments, costs=search.model.source)
    time = time_of_run(plan.network, plan.patch, changed.parts, search.overhead)
    return replace(changed, time=time)


def _repriced(step: Step, catalogue: Catalogue, model: CostModel) -> Step:
    """Return a step with a model's seconds. A step on two devices keeps its own."""

    def estimate(name: str, shape: Shape5) -> Estimate:
        cost = catalogue[name].cost(step.operation, shape)
        return model.estimate(catalogue[name], step.operation, shape, cost)

    match step.primitive:
        case str(name):
            seconds, error = estimate(name, step.shape_in)
        case InTurn(pieces):
            prices = [
                (it.times, *estimate(it.primitive, step.shape_in._replace(n=it.items)))
                for it in pieces
            ]
            seconds = sum(times * each for times, each, _ in prices)
            error = sum(times * each * error for times, each, error in prices) / seconds
        case _:
            return step
    return replace(step, seconds=seconds, error=error)
