"""Where layers run: the choice between host and GPU, and of GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from planner.shape_samples import sample_steps
from znni.core.errors import PLAN_AGAIN, InvalidInput, option
from znni.core.options import Choices, DeviceChoice
from znni.core.text import counted
from znni.machine.gpus import why_no_gpu
from znni.machine.machine import Device, Machine
from znni.network.network import Layer, Network
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, Primitive, on_device, without_gpu

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
    for node in network.nodes:
        layer = node.layer
        steps = list(sample_steps(layer, network.maps[node.inputs[0]]))
        if not any(
            primitive.out_shape(layer, step.shape_in) == step.shape_out
            for primitive in primitives.values()
            for step in steps
        ):
            return layer
    return None


def _why_none(machine: Machine) -> str:
    return "the machine described has no GPU" if machine.absent else why_no_gpu()


ALL = "all"

# What CUDA takes of a GPU for a process that begins with it, measured on an H200, with room. The
# process that looked at the GPUs has its own by then, and each that computes takes another.
CONTEXT_BYTES = 640 * 2**20

VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose_gpus(machine: Machine, choices: Choices) -> Machine:
    """A machine whose first GPUs are those that were chosen.

    Where there are several, each has as much memory as the one that has the least.

    Raises:
        InvalidInput: there are not so many, layers are to run on the host, too, or a GPU that is
            not to be used has a limit.
    """
    if choices.device == "cpu" and choices.gpu_memory is not None:
        raise InvalidInput(
            f"{option('gpu_memory', choices.gpu_memory)} limits a GPU, and no layer is to run on "
            f"one: {option('device', 'cpu')}; leave one of them out"
        )
    there = len(machine.gpus)
    numbers = _numbers(choices.gpus, there)
    if numbers == [0] or (choices.gpus == ALL and not there):
        return machine
    if len(numbers) > 1 and choices.device not in ("auto", "gpu"):
        raise InvalidInput(
            f"{counted(len(numbers), 'GPU')} compute all layers, and "
            f"{option('device', choices.device)} has some on the host; give {option('gpus', 1)}, "
            f"or {option('device', 'gpu')}"
        )
    if not there:
        raise InvalidInput(
            f"{option('gpus', choices.gpus)}: there is no GPU that can be used; leave it out"
        )
    if max(numbers) >= there:
        raise InvalidInput(
            f"{option('gpus', choices.gpus)}: there {'is' if there == 1 else 'are'} "
            f"{counted(there, 'GPU')}, numbered from 0; give {option('gpus', ALL)} for all"
        )
    gpus = [replace(gpu, number=number) for number, gpu in enumerate(machine.gpus)]
    chosen = [gpus[number] for number in numbers]
    if len(chosen) > 1:
        taken = 0 if choices.gpu_memory else CONTEXT_BYTES
        least = max(1, min(gpu.memory for gpu in chosen) - taken)
        chosen = [replace(gpu, memory=least) for gpu in chosen]
    others = [gpu for gpu in gpus if gpu.number not in numbers]
    return replace(machine, gpus=(*chosen, *others), used_gpus=len(chosen))


def _numbers(gpus: int | str, there: int) -> list[int]:
    """The places of the GPUs chosen among those that there are."""
    given = str(gpus).strip()
    if given == ALL:
        return list(range(max(1, there)))
    parts = given.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InvalidInput(
            f"{option('gpus', gpus)}: give how many, {ALL}, or which, as {option('gpus', '0,2')}"
        )
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        numbers = list(range(numbers[0]))
    if not numbers or len(set(numbers)) < len(numbers):
        raise InvalidInput(f"{option('gpus', gpus)}: give one GPU or more, and each of them once")
    return numbers


def seeing_only(gpu: Device) -> Mapping[str, str]:
    """The environment of a process that sees no other GPU."""
    visible = os.environ.get(VISIBLE)
    return {VISIBLE: visible.split(",")[gpu.number] if visible else str(gpu.number)}
