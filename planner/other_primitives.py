"""Alternative primitives for a plan's steps, with their times and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cost_model import CostModel
from znni.plans.device_partition import DevicePart
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, on_device
from znni.plans.segments import Alternative, Step
from znni.plans.totals import PlanMemory


def other_primitives(
    plan: Plan, catalogue: Catalogue, model: CostModel
) -> Iterator[tuple[Step, int, list[Alternative]]]:
    """Yield each step, its runs for a patch, and all other primitives for it, fastest first.

    Args:
        plan: a plan made from the catalogue.
        catalogue: the primitives by name.
        model: the model that predicts their times.
    """
    for part in plan.parts:
        memory, device = plan.limits[part.device]
        primitives = on_device(catalogue, part.device)
        for segment_index, (segment, runs) in enumerate(part.runs()):
            for index, step in enumerate(segment.steps):
                others = [
                    Alternative(
                        other,
                        _memory_with(part, memory, segment_index, index, other),
                        device.memory,
                    )
                    for other in _by_others(step, primitives, model)
                ]
                yield step, runs, sorted(others, key=lambda other: other.step.seconds)


def _by_others(step: Step, catalogue: Catalogue, model: CostModel) -> Iterator[Step]:
    call = step.operation, step.shape_in
    for name, primitive in catalogue.items():
        if name != step.primitive and primitive.out_shape(*call) == step.shape_out:
            cost = primitive.cost(*call)
            estimate = model.estimate(primitive, *call, cost)
            yield replace(
                step, primitive=name, cost=cost, seconds=estimate.seconds, error=estimate.error
            )


def _memory_with(
    part: DevicePart, memory: PlanMemory, segment_index: int, index: int, other: Step
) -> int:
    """Return the bytes of a device if one step of its part is replaced."""
    segments = list(part.segments)
    steps = segments[segment_index].steps
    instead = (*steps[:index], other, *steps[index + 1 :])
    segments[segment_index] = replace(segments[segment_index], steps=instead)
    changed = replace(part, segments=tuple(segments))
    working, _ = changed.working_peak()
    return replace(memory, working=working, resident=changed.resident).total
