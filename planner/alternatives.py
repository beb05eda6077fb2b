"""Other primitives for a plan's steps: what each would change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.costs import CostModel
from znni.plans import Plan, Segment, Step, working_peak
from znni.primitive import Catalogue, Primitive


@dataclass(frozen=True)
class Alternative:
    """A step by another primitive, all else of its plan unchanged.

    Attributes:
        step: that one.
        memory: bytes that the plan would then take of its device.
    """

    step: Step
    memory: int


def alternatives(
    plan: Plan, catalogue: Catalogue, model: CostModel
) -> Iterator[tuple[Step, int, list[Alternative]]]:
    """Each step, how often it runs for a patch, and every other primitive for it, fastest first.

    Args:
        plan: made for the catalogue.
        catalogue: the primitives.
        model: predicts the times of the alternatives.
    """
    for place, (segment, runs) in enumerate(plan.runs()):
        for index, step in enumerate(segment.steps):
            others = [
                Alternative(other, _memory_with(plan, place, index, other))
                for other in _by_others(step, catalogue, model)
            ]
            yield step, runs, sorted(others, key=lambda other: other.step.seconds)


def _by_others(step: Step, catalogue: Catalogue, model: CostModel) -> Iterator[Step]:
    for name, primitive in catalogue.items():
        if name != step.primitive and _does(primitive, step):
            cost = primitive.cost(step.operation, step.shape_in)
            estimate = model.estimate(primitive, step.operation, step.shape_in, cost)
            yield replace(
                step, primitive=name, cost=cost, seconds=estimate.seconds, error=estimate.error
            )


def _does(primitive: Primitive, step: Step) -> bool:
    return primitive.out_shape(step.operation, step.shape_in) == step.shape_out


def _memory_with(plan: Plan, place: int, index: int, other: Step) -> int:
    """Bytes of the plan with one step replaced."""
    segments = list(plan.segments)
    steps = segments[place].steps
    instead = (*steps[:index], other, *steps[index + 1 :])
    segments[place] = replace(segments[place], steps=instead)
    working, _ = working_peak(tuple[Segment, ...](segments), plan.input_shape)
    resident = sum(step.cost.memory.resident for part in segments for step in part.steps)
    return replace(plan.device_memory, working=working, resident=resident).total
