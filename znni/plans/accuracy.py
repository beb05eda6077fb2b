"""Classes of accuracy: the primitives of each class, and a note on a plan's accuracy."""

from __future__ import annotations

from znni.core.option_types import ACCURACIES, Accuracy
from znni.plans.plan import Plan
from znni.plans.primitive import Among, Catalogue, LazyCatalogue, Primitive
from znni.plans.step_primitive import primitive_of


def filter_by_class(primitives: Catalogue, accuracy: Accuracy) -> LazyCatalogue:
    """Return the primitives that stay within an accuracy class."""
    most = ACCURACIES[accuracy]
    return Among(primitives, lambda found: found.accuracy <= most, f"class {accuracy}")


def class_of(primitive: Primitive) -> Accuracy:
    """Return the best class that a primitive stays within."""
    kept = (name for name, error in ACCURACIES.items() if primitive.accuracy <= error)
    return next(kept)


def class_of_plan(plan: Plan, primitives: Catalogue) -> Accuracy:
    """Return the class of a plan's least accurate primitive."""
    classes = {class_of(primitive_of(primitives, step.primitive)) for step in plan.steps}
    return max(classes, key=ACCURACIES.__getitem__)


def note_on(plan: Plan, primitives: Catalogue, allowed: Accuracy) -> str:
    """Return a note on a plan's accuracy; empty if float32 was asked for and is used.

    Args:
        plan: the plan, whose primitives are all in the catalogue.
        primitives: all primitives of the machine.
        allowed: the class that was asked for.
    """
    if allowed == "float32":
        return ""
    used = class_of_plan(plan, primitives)
    if used != "float32":
        layers = [
            step.operation.name
            for step in plan.steps
            if class_of(primitive_of(primitives, step.primitive)) == used
        ]
        error = ACCURACIES[used]
        return f"{used} in {', '.join(layers)}: relative errors of up to {error:g} a layer"
    devices = {part.device for part in plan.parts}
    there = (found for found in primitives.values() if found.device.kind in devices)
    if any(ACCURACIES["float32"] < p.accuracy <= ACCURACIES[allowed] for p in there):
        return f"float32: {allowed} is allowed, but the plan does not use it"
    lacking = (
        "no primitive for the GPU rounds that far; install cuDNN, whose primitive does"
        if not plan.layers_on_host
        else "the processor has no instructions for it"
    )
    return f"float32: {allowed} is allowed, and {lacking}"
