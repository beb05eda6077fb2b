"""Whether a plan that was made earlier is for what is to be run now."""

from __future__ import annotations

from math import ceil

from znni.core.errors import PLAN_AGAIN, InvalidInput, option
from znni.core.options import ACCURACIES, Accuracy, DeviceChoice
from znni.core.text import counted, in_units
from znni.inference.devices import why_none
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.plans.accuracy import class_of
from znni.plans.micro_batches import named
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.plans.totals import PlanMemory


def check_made_for(given: Plan, network: Network, threads: int | None) -> None:
    """Check whom a plan is for.

    Args:
        given: the plan.
        network: what is to be run.
        threads: worker threads, if they are to be a certain number.

    Raises:
        InvalidInput: it is for another network, or other threads.
    """
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
            f"the plan runs layers on {plan.gpu.name}: {why_none(here)}; or {PLAN_AGAIN}"
        )


def check_class(given: Plan, primitives: Catalogue, allowed: Accuracy) -> None:
    """Check the accuracy of a plan whose primitives are all there.

    Raises:
        InvalidInput: it has a primitive of a lower class than is allowed.
    """
    for step in given.steps:
        needed = class_of(named(primitives, step.primitive))
        if ACCURACIES[needed] > ACCURACIES[allowed]:
            raise InvalidInput(
                f"the plan runs layer {step.operation.name} by {step.primitive}, whose accuracy is "
                f"{needed}; give {option('accuracy', needed)} to allow that, or {PLAN_AGAIN}"
            )


def check_allowed(limit: str, memory: PlanMemory, allowed: int, what: str) -> None:
    """Check."""
    if memory.total > allowed:
        raise InvalidInput(
            f"the plan takes {in_units(memory.total)}{what} and {in_units(allowed)} are allowed; "
            f"give {option(limit, f'{ceil(memory.total / 2**20)}MiB')} or more, or {PLAN_AGAIN}"
        )
