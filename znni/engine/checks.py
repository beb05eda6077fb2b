"""Checks that a plan or a volume can be run."""

from __future__ import annotations

from znni.core.errors import PLAN_AGAIN, SAVE_AS_Z, InvalidInput, option
from znni.core.shapes import extended, resized
from znni.core.text import counted
from znni.core.volume import Volume
from znni.network.network import Network
from znni.plans.device_partition import DevicePart, bytes_of
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.plans.rewrites.fusion_rules import fusion_of
from znni.plans.rewrites.packed_rules import follow_rules
from znni.plans.step_primitive import find_primitive


def check_runnable(plan: Plan, catalogue: Catalogue) -> None:
    """Check that this machine's primitives compute what the plan says.

    Raises:
        InvalidInput: a primitive is unknown, gives other shapes, or takes more memory.
    """
    for part in plan.parts:
        _check_steps(part, catalogue)
        _check_rules(part, plan.network)
    _check_memory(plan)


def _check_steps(part: DevicePart, catalogue: Catalogue) -> None:
    expected, swept = part.input_shape, part.swept
    axis = swept.axis if swept else "z"
    kept = iter([it.planes for it in part.inputs_kept] or [0] * len(part.steps))
    if swept:
        expected = resized(expected, axis, swept.new)
    for segment in part.segments:
        first = segment.steps[0]
        if expected.n % segment.sub_batch or first.shape_in.n != segment.sub_batch:
            raise InvalidInput(
                f"the plan takes {segment.sub_batch} of {counted(expected.n, 'item')} at layer "
                f"{first.operation.name}; {PLAN_AGAIN}"
            )
        expected = extended(expected, axis, next(kept))
        last_shift = segment.shift(tuple(window - 1 for window in segment.plain_windows))
        if not part.storage and first.shape_in.size + last_shift != expected.size:
            raise InvalidInput(
                f"the plan's layer {first.operation.name} takes {first.shape_in} of {expected}; "
                f"{PLAN_AGAIN}"
            )
        shape = first.shape_in
        for index, step in enumerate(segment.steps):
            shape = extended(shape, axis, next(kept) if index else 0)
            primitive = find_primitive(catalogue, step.primitive)
            if primitive is None:
                raise InvalidInput(
                    f"the plan runs layer {step.operation.name} by primitive '{step.primitive}', "
                    f"which this machine does not have; if an installed package brought it, "
                    f"install that again, or {PLAN_AGAIN}"
                )
            if primitive.device.kind != segment.device:
                raise InvalidInput(
                    f"the plan runs {step.primitive} on the {segment.device}, but it runs on the "
                    f"{primitive.device.kind}; {PLAN_AGAIN}"
                )
            if part.storage:
                first_layer = step.layers[0].name
                taken = tuple(name for reader, name in step.reads if reader == first_layer)
                shape = part.storage.shape_taken(first_layer, taken)
            out = primitive.out_shape(step.operation, shape)
            if step.shape_in != shape or step.shape_out != out:
                raise InvalidInput(
                    f"the plan's layer {step.operation.name} does not turn {step.shape_in} into "
                    f"{step.shape_out} with {step.primitive}; {PLAN_AGAIN}"
                )
            needed = primitive.cost(step.operation, shape).memory
            if not needed.within(step.cost.memory):  # other processors may need less
                raise InvalidInput(
                    f"the plan says that {step.primitive} takes {step.cost.memory} for layer "
                    f"{step.operation.name}, but it takes {needed} here; {PLAN_AGAIN}"
                )
            shape = step.shape_out
        expected = shape


def _check_rules(part: DevicePart, network: Network) -> None:
    """Check that no step adds where it must not, and that all agree which values are packed."""
    if part.storage is None:
        return
    for step in part.steps:
        if len(step.layers) > 1:
            fusion = fusion_of(network, step)
            if fusion is None or not part.storage.allows(fusion):
                raise InvalidInput(
                    f"the plan's layer {step.operation.name} cannot be one step; {PLAN_AGAIN}"
                )
    if not follow_rules(part.steps, network.nodes, part.storage):
        raise InvalidInput(
            f"the plan's layers do not agree which values are packed or normalized; {PLAN_AGAIN}"
        )


def _check_memory(plan: Plan) -> None:
    for promised, device in plan.limits.values():
        resident, working = bytes_of(plan.parts, device.kind)
        if (promised.resident, promised.working) != (resident, working):
            raise InvalidInput(
                f"the plan promises {promised.resident} resident and {promised.working} working "
                f"bytes of {device.name}, but its steps take {resident} and {working}; {PLAN_AGAIN}"
            )


# The most maps that images commonly have, such as red, green, blue and alpha.
MOST_CHANNELS = 4


def check_features(
    volume: Volume, network: Network, *, one_map: str = option("channel", 0)
) -> None:
    """Check that a volume has as many maps as the network takes.

    Args:
        volume: the volume.
        network: the network.
        one_map: what chooses the first map, for the remedy.

    Raises:
        InvalidInput: it has another number of maps.
    """
    if volume.features != network.in_features:
        last = " (the last axis looks like the maps: move it to the front)"
        maps_last = volume.size.x <= MOST_CHANNELS or volume.size.x == network.in_features
        planes = volume.size.z == 1 and volume.features > MOST_CHANNELS
        raise InvalidInput(
            f"the volume has {counted(volume.features, 'map')} and network {network.name} takes "
            f"{network.in_features}{_choice(volume, network, one_map)}; axes are (z, y, x), or "
            f"(maps, z, y, x) for several maps"
            + last * (volume.features > 1 and maps_last)
            + f"; {SAVE_AS_Z}" * (planes and not maps_last)
        )


def _choice(volume: Volume, network: Network, one_map: str) -> str:
    """Return how to choose a map, if a network takes one of several."""
    if network.in_features > 1 or volume.features == 1:
        return ""
    names = getattr(volume, "maps", ())
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    named = f" ({listed})" * bool(names)
    return f"; choose one of them{named}, such as {one_map}"
