"""Classes of accuracy: which primitives keep to one, and what is to be said of a plan's."""

from __future__ import annotations

from znni.core.options import ACCURACIES, Accuracy
from znni.plans.micro_batches import named
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, Primitive


def of_class(primitives: Catalogue, accuracy: Accuracy) -> dict[str, Primitive]:
    """Those that keep to a class."""
    most = ACCURACIES[accuracy]
    return {name: found for name, found in primitives.items() if found.accuracy <= most}


def class_of(primitive: Primitive) -> Accuracy:
    """The best class that a primitive keeps to."""
    kept = (name for name, error in ACCURACIES.items() if primitive.accuracy <= error)
    return next(kept)


def class_of_plan(plan: Plan, primitives: Catalogue) -> Accuracy:
    """The class of the least accurate primitive of a plan."""
    classes = {class_of(named(primitives, step.primitive)) for step in plan.steps}
    return max(classes, key=ACCURACIES.__getitem__)


def note_on(plan: Plan, primitives: Catalogue, allowed: Accuracy) -> str:
    """What is to be said of a plan's accuracy: nothing where float32 was asked for and is used.

    Args:
        plan: its primitives are among those.
        primitives: all that the machine has.
        allowed: the class that was asked for.
    """
    used = class_of_plan(plan, primitives)
    if used != "float32":
        layers = [
            step.operation.name
            for step in plan.steps
            if class_of(named(primitives, step.primitive)) == used
        ]
        error = ACCURACIES[used]
        return f"{used} in {', '.join(layers)}: relative errors of up to {error:g} a layer"
    if allowed == "float32":
        return ""
    devices = {part.device for part in plan.parts}
    there = (found for found in primitives.values() if found.device.kind in devices)
    if any(ACCURACIES["float32"] < p.accuracy <= ACCURACIES[allowed] for p in there):
        return f"float32: {allowed} is allowed, and the plan makes no use of it"
    lacking = (
        "no primitive for the GPU rounds that far; cuDNN's would, were it installed"
        if plan.device == "gpu"
        else "the processor has no instructions for it"
    )
    return f"float32: {allowed} is allowed, and {lacking}"
