"""The calibration of one network: its layers are measured until no other plan can be faster.

Before a long run, it measures less.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple, TypeAlias

from planner.repricing import repriced
from planner.search import Search
from znni.calibration.choice import cost_model
from znni.calibration.model import MeasuredModel
from znni.calibration.optimism import OptimisticModel
from znni.calibration.plan_measurement import measure, unmeasured_calls, unsure_calls
from znni.core.text import aligned, counted, duration
from znni.inference import planning
from znni.machine.busy import slowdown
from znni.plans.band import NOTABLE_SLOWDOWN
from znni.plans.plan import Plan
from znni.primitives.cpu.common.lazy_kernel import compiled_seconds

log = logging.getLogger("znni")

# Takes the number of measurements made and planned, and what is measured next.
Progress: TypeAlias = Callable[[int, int, str], None]


class Tuned(NamedTuple):
    """The result of a network's calibration.

    Attributes:
        before: the fastest plan before it.
        before_now: the same plan by the times that are known now.
        after: the fastest plan now.
        measured: the number of measurements. The last plan's calls were measured twice.
        rounds: the number of plans whose steps were checked.
        left: the calls that could not be measured in time. They might change the choice.
    """

    before: Plan
    before_now: Plan
    after: Plan
    measured: int
    rounds: int
    left: int


def tune(
    search: Search, plan: Plan, seconds: float, progress: Progress, *, quick: bool = False
) -> Tuned:
    """Measure the layers of the plans that may be the fastest, and return the fastest one.

    The steps of the first plan are measured first. Then a search takes the least time that calls
    without a measurement may need within their error. The steps of its plan are measured, and the
    search begins again. If all steps were measured twice, no other plan is likely to be faster.

    Args:
        search: the search for the plan.
        plan: the fastest plan by what is known.
        seconds: the seconds after which no other call is measured. Compiling the kernels of a plan
            does not count.
        progress: is called before each measurement.
        quick: whether a run waits. Then only kinds of primitives are measured that never were, and
            each plan's rivals in turn. The next plan is the fastest by expected times.

    Raises:
        DoesNotFit: no plan stays within the memory allowed.
        InvalidInput: the times cannot be kept.
        RunFailed: a GPU fails.
    """
    if not quick and (busy := slowdown()) >= NOTABLE_SLOWDOWN:
        log.warning("other programs slow measurements down %.1f times: end them first", busy)
    begun, compiling, before, model = perf_counter(), 0.0, plan, search.model
    measured, rounds, left = 0, 1, 0
    calls_of = unmeasured_calls if quick else unsure_calls
    while (calls := calls_of(plan, search.catalogue, model)).own:
        needed = measured + len(calls.own)
        planned = needed + len(calls.rivals)
        for primitive, call in (*calls.own, *calls.rivals):
            if perf_counter() - begun - compiling >= seconds:
                break
            progress(measured, planned, f"{call.operation.name} by {primitive.name}")
            compiled = compiled_seconds()
            measure(primitive, call, quick=quick)
            measured += 1
            if measured <= needed:
                compiling += compiled_seconds() - compiled
        model = cost_model(search.catalogue)
        if left := planned - measured:
            break
        progress(measured, planned, "searching")
        rounds += 1
        if isinstance(model, MeasuredModel) and not quick:
            plan = planning.fastest(search.predicted_by(OptimisticModel(model)))[0]
        else:
            plan = planning.fastest(search.predicted_by(model))[0]
    search = search.predicted_by(model)
    after = planning.fastest(search)[0]
    return Tuned(before, repriced(before, search), after, measured, rounds, left)


def tuning_text(tuned: Tuned) -> str:
    """Return what was measured, the predicted times, and the layers whose primitives changed."""
    done = f"{counted(tuned.measured, 'measurement')} in {counted(tuned.rounds, 'round')}"
    if tuned.left:
        why = f"the time is up, and {counted(tuned.left, 'other call')} may change the plan"
    else:
        why = "no other plan can be faster within the error of its time"
    plans = [("before", tuned.before), ("before, by times of now", tuned.before_now)]
    rows = [
        (name, f"{duration(plan.seconds)} +- {plan.error:.0%}", f"patch {plan.patch}")
        for name, plan in [*plans, ("now", tuned.after)]
    ]
    return "\n".join([f"{done}: {why}", "", *aligned(rows, left=3), "", *_differing(tuned)])


def _differing(tuned: Tuned) -> list[str]:
    """Return a line for each layer whose primitive is another one now."""
    then, now = _primitives(tuned.before), _primitives(tuned.after)
    rows = [(name, then[name], now[name]) for name in now if then.get(name) != now[name]]
    if not rows:
        return ["all layers keep their primitives"]
    return [line.rstrip() for line in aligned([("layer", "before", "now"), *rows], left=3)]


def _primitives(plan: Plan) -> dict[str, str]:
    """Return the primitive of each layer, by name."""
    return {layer.name: str(step.primitive) for step in plan.steps for layer in step.layers}
