"""Measurements of the steps of a plan, kept as those of a calibration.

A first measurement is made before a long run on a machine without a calibration. It takes the steps
of one plan and their rivals, on small images. The calibration of a network takes all steps, on
their own images. Both correct the predicted time, and the choice of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from planner.cost_model import CostModel, built_in_seconds
from znni.calibration.database import LATEST, CostDatabase
from znni.calibration.device_measure import DeviceWorkbench
from znni.calibration.measure import Workbench
from znni.calibration.model import MeasuredModel
from znni.calibration.record import record
from znni.calibration.regression import REPEATED
from znni.calibration.shapes import Call
from znni.core.processors import HOST
from znni.core.shapes import Shape5
from znni.network.layers import Operation
from znni.plans.composition import InTurn
from znni.plans.device_partition import DevicePart
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, Primitive, TakesTimePerItem, UsesGpu, on_device
from znni.plans.segments import Step

# A primitive that computes an operation on a shape.
_Priced: TypeAlias = tuple[Primitive, Operation, Shape5]

# The most seconds that a measured call takes by the built-in model, and how often it is timed.
# Other programs slow down shorter calls less than they slow down a run.
CALL_SECONDS = 0.1
REPEATS = 2

# The same for the calibration of a network, and the least times that its last plan's calls are
# timed. What is chosen was often timed when the machine was fast. So it is timed again, later.
OWN_CALL_SECONDS = 2.0
OWN_REPEATS = REPEATED
CONFIRMED = LATEST

# The share of an extent that is left in one step to a smaller image. Rows stay as long as they are.
SMALLER = 0.8

# The share of a patch's seconds from which a step is measured.
LEAST_SHARE = 0.02

# Rivals of a step's primitive may take so many times as long, as far as is known.
RIVALS = 1.5


class Unmeasured(NamedTuple):
    """The calls to measure for a plan, those of the longest steps first.

    Attributes:
        own: calls that measure the speed of a plan's steps.
        rivals: calls of other primitives for these steps, which may be about as fast.
    """

    own: list[tuple[Primitive, Call]]
    rivals: list[tuple[Primitive, Call]]


def unmeasured_calls(plan: Plan, catalogue: Catalogue, model: CostModel) -> Unmeasured:
    """Return calls of kinds of primitives that were never measured, for the host's steps of a plan.

    First comes one call of each kind, then another one of each.

    Args:
        catalogue: the primitives that it was chosen from.
        model: the model of times that it was chosen by.
    """
    part = plan.on_host
    if part is None or part.uses_gpu:
        return Unmeasured([], [])
    taken = _seconds_of_calls(part, catalogue)
    least = LEAST_SHARE * sum(seconds for _, seconds in taken)
    chosen = [each for each, seconds in taken if seconds >= least]
    on_host = on_device(catalogue, HOST)
    rivals = [rival for each in chosen for rival in _rivals(*each, on_host, model)]
    allowed = plan.memory.resident + plan.memory.working

    def calls(steps: Iterable[_Priced]) -> list[tuple[Primitive, Call]]:
        unknown = (step for step in steps if _is_unknown(*step, model))
        parts = ((step[0], _part_of(*step, CALL_SECONDS)) for step in unknown)
        return _in_rounds(part for part in parts if _memory(*part) <= allowed)

    return Unmeasured(calls(chosen), calls(dict.fromkeys(rivals)))


def unsure_calls(plan: Plan, catalogue: Catalogue, model: CostModel) -> Unmeasured:
    """Return the calls of a plan's steps that were not timed often enough, on their own images.

    The longest steps come first. If some calls are unlike all that were measured, only these are
    returned: the next plan may have other images. Times that a primitive tells itself are sure. The
    times of host primitives that use a GPU are sure, too: they follow from the GPU's primitives.

    Args:
        catalogue: the primitives that it was chosen from.
        model: the model of times that it was chosen by.
    """
    called = dict.fromkeys(
        (primitive, _part_of(primitive, operation, shape, OWN_CALL_SECONDS))
        for part in plan.parts
        for (primitive, operation, shape), _ in _seconds_of_calls(part, catalogue)
        if not (isinstance(primitive, UsesGpu) or primitive.device.backend)
        and primitive.cost(operation, shape).seconds is None
    )
    if not isinstance(model, MeasuredModel):
        return Unmeasured(list(called), [])
    unlike = [each for each in called if not model.is_sure(*each)]
    return Unmeasured(unlike or [it for it in called if model.times(*it) < CONFIRMED], [])


def measure(primitive: Primitive, call: Call, *, quick: bool = False) -> None:
    """Measure a call so often that its time is sure, and keep the times.

    Args:
        quick: whether a run waits. Then the median of fewer times is kept, as one of a calibration.

    Raises:
        InvalidInput: the times cannot be kept.
        RunFailed: the GPU fails.
    """
    bench = DeviceWorkbench if primitive.device.has_own_memory else Workbench
    repeats = REPEATS if quick else OWN_REPEATS
    timing = bench([(primitive, call)]).measure(primitive, call, repeats)
    kept = [timing.median] if quick else timing.seconds
    record([(primitive, call, seconds) for seconds in kept], CostDatabase())


def _seconds_of_calls(part: DevicePart, catalogue: Catalogue) -> list[tuple[_Priced, float]]:
    """Return the different calls of a part's steps with the seconds for a patch, longest first."""
    taken: dict[tuple[str, Operation, Shape5], float] = {}
    for segment, runs in part.runs():
        for step in segment.steps:
            for name, items in pieces_of(step):
                key = name, step.operation, step.shape_in._replace(n=items)
                taken[key] = taken.get(key, 0.0) + runs * step.seconds
    longest = sorted(taken.items(), key=lambda each: -each[1])
    return [
        ((catalogue[name], operation, shape), seconds)
        for (name, operation, shape), seconds in longest
    ]


def _in_rounds(calls: Iterable[tuple[Primitive, Call]]) -> list[tuple[Primitive, Call]]:
    """Return calls with the first one of each kind before the second ones, and so on."""
    before = Counter[type]()
    ranked = []
    for call in calls:
        ranked.append((before[type(call[0])], call))
        before[type(call[0])] += 1
    return [call for _, call in sorted(ranked, key=itemgetter(0))]


def pieces_of(step: Step) -> Iterator[tuple[str, int]]:
    """Yield the names of the primitives that compute a step, with the items that each takes."""
    match step.primitive:
        case str(name):
            yield name, step.shape_in.n
        case InTurn(pieces):
            yield from ((piece.primitive, piece.items) for piece in pieces)


def _rivals(
    chosen: Primitive, operation: Operation, shape: Shape5, catalogue: Catalogue, model: CostModel
) -> Iterator[_Priced]:
    """Yield the fastest primitive of each other kind that may be about as fast as a chosen one."""

    def seconds(primitive: Primitive) -> float:
        cost = primitive.cost(operation, shape)
        return model.estimate(primitive, operation, shape, cost).seconds

    made, most = chosen.out_shape(operation, shape), RIVALS * seconds(chosen)
    able = (it for it in catalogue.values() if it.out_shape(operation, shape) == made)
    kinds = {type(chosen)}
    for primitive in sorted(able, key=seconds):
        if seconds(primitive) <= most and type(primitive) not in kinds:
            kinds.add(type(primitive))
            yield primitive, operation, shape


def _is_unknown(
    primitive: Primitive, operation: Operation, shape: Shape5, model: CostModel
) -> bool:
    """Return whether neither measurements nor the primitive itself tell the time of a call."""
    if primitive.cost(operation, shape).seconds is not None:
        return False
    return not (isinstance(model, MeasuredModel) and model.has_measured(primitive))


def _part_of(primitive: Primitive, operation: Operation, shape: Shape5, most: float) -> Call:
    """Return a call of fewer items, or of smaller images, that takes at most some seconds."""

    def is_long() -> bool:
        return built_in_seconds(primitive, primitive.cost(operation, shape)) > most

    while is_long() and shape.n > 1 and isinstance(primitive, TakesTimePerItem):
        shape = shape._replace(n=shape.n // 2)
    while is_long():
        longer = "z" if shape.z >= shape.y else "y"
        extents = range(int(SMALLER * getattr(shape, longer)), 0, -1)
        parts = (shape._replace(**{longer: extent}) for extent in extents)
        part = next((it for it in parts if primitive.out_shape(operation, it)), None)
        if part is None:
            break
        shape = part
    return Call(operation, shape)


def _memory(primitive: Primitive, call: Call) -> int:
    """Return the bytes that measuring a call takes."""
    memory = primitive.cost(*call).memory
    return memory.resident + memory.working
