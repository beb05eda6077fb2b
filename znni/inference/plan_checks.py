"""Checks that an earlier plan suits the network, devices, accuracy and memory of this run."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from znni.core.errors import PLAN_AGAIN, InvalidInput, option
from znni.core.options import ACCURACIES, Accuracy
from znni.core.processors import FASTEST, DeviceChoice
from znni.core.text import counted, in_units
from znni.inference.devices import why_none
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.plans.accuracy import class_of
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.plans.step_primitive import primitive_of
from znni.plans.totals import PlanMemory

WHOLE = "computed without windows"


def check_made_for(given: Plan, network: Network, threads: int | None) -> None:
    """Check that a plan is for this network and this number of threads.

    Args:
        given: the plan.
        network: the network to run.
        threads: number of worker threads; None if any number is fine.

    Raises:
        InvalidInput: the plan is for another network, another input of an exact network, other
            windows, or another number of threads.
    """
    if replace(given.network, whole=network.whole) == network and given.network != network:
        raise InvalidInput(
            f"the plan is for an input of {given.network.whole} voxels, not {network.whole}, "
            f"padding included; {PLAN_AGAIN}"
        )
    planned_in, in_windows = given.network.window, network.window
    if planned_in != in_windows and given.network == replace(
        network, window=planned_in, whole=given.network.whole
    ):
        if str(planned_in) == str(in_windows) and planned_in and in_windows:
            differ = f"a volume of {planned_in.volume}, not {in_windows.volume}"
        else:
            differ = f"a network that is {planned_in or WHOLE}, not {in_windows or WHOLE}"
        raise InvalidInput(f"the plan is for {differ}; {PLAN_AGAIN}")
    if given.network != network:
        raise InvalidInput(
            f"the plan is for network {given.network.name}, as it was then, not for this "
            f"{network.name}; {PLAN_AGAIN}"
        )
    planned = given.machine.host.threads
    if threads not in (None, planned):
        raise InvalidInput(
            f"the plan is for {counted(planned, 'thread')}, not {threads}; give "
            f"{option('threads', planned)}, or {PLAN_AGAIN}"
        )


def check_device(plan: Plan, here: Machine, device: DeviceChoice) -> None:
    """Check that a plan is for devices that this machine has and the user allows.

    Raises:
        InvalidInput: the plan is for another device.
    """
    planned = plan.device
    if device not in (FASTEST, planned):
        raise InvalidInput(
            f"the plan runs the layers on the {planned.upper()}, not the {device.upper()}; give "
            f"{option('device', planned)}, or {PLAN_AGAIN}"
        )
    if plan.gpu_memory and not here.gpus:
        raise InvalidInput(
            f"the plan runs layers on {plan.gpu.name}: {why_none(here)}; or {PLAN_AGAIN}"
        )


def check_class(given: Plan, primitives: Catalogue, allowed: Accuracy) -> None:
    """Check the accuracy of a plan whose primitives all exist on this machine.

    Raises:
        InvalidInput: a primitive of the plan has a lower accuracy class than is allowed.
    """
    for step in given.steps:
        needed = class_of(primitive_of(primitives, step.primitive))
        if ACCURACIES[needed] > ACCURACIES[allowed]:
            raise InvalidInput(
                f"the plan runs layer {step.operation.name} by {step.primitive}, whose accuracy is "
                f"{needed}; give {option('accuracy', needed)} to allow that, or {PLAN_AGAIN}"
            )


def check_allowed(limit: str, memory: PlanMemory, allowed: int, what: str) -> None:
    """Check that a plan's memory is within a limit.

    Args:
        limit: the option that sets the limit: ``ram`` or ``gpu_memory``.
        memory: memory of the plan.
        allowed: the limit in bytes.
        what: words that follow the plan's memory in the error.

    Raises:
        InvalidInput: the plan takes more.
    """
    if memory.total > allowed:
        raise InvalidInput(
            f"the plan takes {in_units(memory.total)}{what} and {in_units(allowed)} are allowed; "
            f"give {option(limit, f'{ceil(memory.total / 2**20)}MiB')} or more, or {PLAN_AGAIN}"
        )
