"""Which device runs the layers, and what it does them by."""

from __future__ import annotations

from planner.samples import sample_steps
from znni.errors import PLAN_AGAIN, InvalidInput, option
from znni.gpus import why_no_gpu
from znni.machine import Machine
from znni.network import Conv, Layer, Network
from znni.options import DeviceChoice
from znni.plans import Plan
from znni.primitive import Catalogue, Primitive, on_device, without_gpu

USE_CPU = f"give {option('device', 'cpu')}"


def primitives_for(
    network: Network, primitives: Catalogue, machine: Machine, device: DeviceChoice
) -> dict[str, Primitive]:
    """The primitives of the devices that may run layers.

    Args:
        network: what is to be run.
        primitives: those of the machine, of the accuracy that was asked for.
        machine: where.
        device: the ``gpu`` is the first one.

    Raises:
        InvalidInput: there is to be a GPU, and there is none; or it is to do all layers, and no
            primitive of it does one of them.
    """
    if device == "auto":
        return dict(primitives)
    if device == "cpu":
        return without_gpu(primitives)
    if not machine.gpus:
        raise InvalidInput(f"{option('device', device)}: {_why_none(machine)}; {USE_CPU}")
    if device == "cpu+gpu":
        return dict(primitives)
    on_gpu = on_device(primitives, "gpu")
    if missing := _first_not_done(network, on_gpu):
        raise InvalidInput(
            f"no GPU primitive of this accuracy does layer {missing.name}, {missing}; {USE_CPU}"
        )
    return on_gpu


def check_device(plan: Plan, here: Machine, device: DeviceChoice) -> None:
    """Check that a plan made earlier is for devices that are here, and that are wanted.

    Raises:
        InvalidInput: it is not.
    """
    planned = plan.device
    if device not in ("auto", planned):
        raise InvalidInput(
            f"the plan runs the layers on the {planned.upper()}, not the {device.upper()}; give "
            f"{option('device', planned)}, or {PLAN_AGAIN}"
        )
    if plan.gpu_memory and not here.gpus:
        raise InvalidInput(
            f"the plan runs layers on {plan.gpu.name}: {_why_none(here)}; or {PLAN_AGAIN}"
        )


def _first_not_done(network: Network, primitives: Catalogue) -> Layer | None:
    """The first layer that no primitive does, alone, in any of a sample of shapes."""
    features = network.in_features
    for layer in network.layers:
        steps = list(sample_steps(layer, features))
        if not any(
            primitive.out_shape(layer, step.shape_in) == step.shape_out
            for primitive in primitives.values()
            for step in steps
        ):
            return layer
        features = layer.out_features if isinstance(layer, Conv) else features
    return None


def _why_none(machine: Machine) -> str:
    return "the machine described has no GPU" if machine.absent else why_no_gpu()
