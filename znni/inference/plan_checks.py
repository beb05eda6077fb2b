"""Earlier plans: checked that they suit the network, devices, accuracy and memory of this run."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from planner.limits import memory_of_run, time_of_run
from znni.core.errors import PLAN_AGAIN, InvalidInput, option
from znni.core.option_types import ACCURACIES, Accuracy
from znni.core.plan_options import ANYTHING, Choices
from znni.core.processors import FASTEST, DeviceChoice
from znni.core.text import counted, in_units
from znni.engine.checks import check_runnable
from znni.engine.tiles import Job
from znni.inference.gpu_choice import choose_gpus, why_none
from znni.inference.planning import overhead_of, primitives_of, shared_out
from znni.machine.cold_pages import warm_bytes
from znni.machine.detect import detect_for
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.plans.accuracy import class_of
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.plans.rewrites.network_rules import rewritten_alike
from znni.plans.stage import itemsize_in
from znni.plans.step_primitive import primitive_of
from znni.plans.stored_values import AS_COMPUTED, Stored
from znni.plans.totals import PlanMemory

WHOLE = "computed without windows"


def checked_plan(
    plan: Plan,
    network: Network,
    choices: Choices = ANYTHING,
    stored: Stored = AS_COMPUTED,
    job: Job | None = None,
) -> Plan:
    """Return an earlier plan after checking that it suits this network and these limits.

    Args:
        network: the network to run.
        choices: limits and choices for the run. Threads and device are checked only if the user
            chose them.
        stored: how input and output values are stored.
        job: the output that is wanted, if it is known.

    Returns:
        The plan with the memory and the time of this run. These change if input or output have
        other types than the plan was made for.

    Raises:
        InvalidInput: the plan is for another network or device, takes more memory or other threads,
            or uses something that this machine lacks. Or it has a primitive of a lower accuracy
            class than was chosen.
    """
    network = rewritten_alike(network, plan.network)
    if plan.network.scaling.rules == network.scaling.rules:
        plan = plan.normalized_as(network)
    check_made_for(plan, network, choices.threads)
    here = detect_for(plan.device, choices.ram, choices.threads, choices.gpu_memory)
    _check_device(plan, here, choices.device)
    _check_theta(plan, choices.theta)
    here = choose_gpus(here, replace(choices, device=plan.device))
    network = shared_out(network, here.used_gpus).computed_as(plan.network)
    plan = replace(plan, network=shared_out(plan.network, here.used_gpus))
    host = plan.machine.host
    able = Machine(replace(host, bfloat16=host.bfloat16 and here.host.bfloat16), here.gpus)
    primitives = primitives_of(network, able)
    check_runnable(plan, primitives)
    _check_class(plan, primitives, choices.accuracy)
    there = replace(plan.machine, gpus=here.gpus, used_gpus=here.used_gpus)
    overhead = overhead_of(network, job, there, stored, choices.costs, warm_bytes())
    parts = plan.parts
    on_host, on_gpu = memory_of_run(network, plan.patch, parts, overhead)
    time = time_of_run(network, plan.patch, parts, overhead)
    itemsize = itemsize_in(overhead.stored, on_host=plan.on_host is not None)
    checked = replace(plan, memory=on_host, gpu_memory=on_gpu, time=time, input_itemsize=itemsize)
    array = stored.output_array
    output = f", {in_units(array)} of it for the output array," * bool(array)
    _check_allowed("ram", checked.memory, here.host.memory, output)
    if checked.gpu_memory:
        _check_allowed("gpu_memory", checked.gpu_memory, here.gpus[0].memory, " of the GPU")
        return replace(checked, machine=there)
    return checked


def check_made_for(plan: Plan, network: Network, threads: int | None) -> None:
    """Check that a plan is for this network and this number of threads.

    Args:
        network: the network to run.
        threads: number of worker threads; None if any number is fine.

    Raises:
        InvalidInput: the plan is for another network, another input of a tiled network, other
            windows, or another number of threads.
    """
    if replace(plan.network, whole=network.whole) == network and plan.network != network:
        raise InvalidInput(
            f"the plan is for an input of {plan.network.whole} voxels, not {network.whole}, "
            f"padding included; {PLAN_AGAIN}"
        )
    planned_in, in_windows = plan.network.window, network.window
    if planned_in != in_windows and plan.network == replace(
        network, window=planned_in, whole=plan.network.whole
    ):
        if str(planned_in) == str(in_windows) and planned_in and in_windows:
            differ = f"a volume of {planned_in.volume}, not {in_windows.volume}"
        else:
            differ = f"a network that is {planned_in or WHOLE}, not {in_windows or WHOLE}"
        raise InvalidInput(f"the plan is for {differ}; {PLAN_AGAIN}")
    if plan.network != network:
        raise InvalidInput(
            f"the plan is for network {plan.network.name}, as it was then, not for this "
            f"{network.name}; {PLAN_AGAIN}"
        )
    planned = plan.machine.host.threads
    if threads not in (None, planned):
        raise InvalidInput(
            f"the plan is for {counted(planned, 'thread')}, not {threads}; give "
            f"{option('threads', planned)}, or {PLAN_AGAIN}"
        )


def _check_device(plan: Plan, here: Machine, device: DeviceChoice) -> None:
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


def _check_theta(plan: Plan, theta: int | None) -> None:
    """Check that a plan has as many layers on the host as the user asks for.

    Raises:
        InvalidInput: it has more or fewer.
    """
    if theta not in (None, plan.layers_on_host):
        raise InvalidInput(
            f"the plan has {counted(plan.layers_on_host, 'layer')} on the host, not {theta}; give "
            f"{option('theta', plan.layers_on_host)}, or {PLAN_AGAIN}"
        )


def _check_class(plan: Plan, primitives: Catalogue, allowed: Accuracy) -> None:
    """Check the accuracy of a plan whose primitives all exist on this machine.

    Raises:
        InvalidInput: a primitive of the plan has a lower accuracy class than is allowed.
    """
    for step in plan.steps:
        needed = class_of(primitive_of(primitives, step.primitive))
        if ACCURACIES[needed] > ACCURACIES[allowed]:
            raise InvalidInput(
                f"the plan runs layer {step.operation.name} by {step.primitive}, whose accuracy is "
                f"{needed}; give {option('accuracy', needed)} to allow that, or {PLAN_AGAIN}"
            )


def _check_allowed(limit: str, memory: PlanMemory, allowed: int, what: str) -> None:
    """Check that a plan's memory is within a limit.

    Args:
        limit: the option that sets the limit: ``ram`` or ``gpu_memory``.
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
