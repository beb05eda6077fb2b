"""The plan that a run takes, and the smaller plan to go on with if memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from znni.core.errors import DoesNotFit, RunFailed, option
from znni.core.options import Choices
from znni.core.text import counted, in_units
from znni.inference import planning
from znni.inference.devices import choose_gpus
from znni.inference.request import Requirements
from znni.machine.detect import AVAILABLE_SHARE, detect_for, detect_host
from znni.machine.device_arena import device_peak
from znni.machine.gpus import detect_gpus
from znni.machine.machine import Device, DeviceKind, Machine
from znni.plans.plan import Plan

log = logging.getLogger("znni")

# Of what a plan takes beside the process, the share that the next one may take.
NEXT_SHARE = 3 / 4

# Where none takes less: whose memory it was, and the remedy.
REMEDIES: dict[DeviceKind, tuple[str, str]] = {
    "cpu": (
        "",
        f"end other programs, or give {option('threads', 1)}, a smaller type of output or a "
        "smaller network",
    ),
    "gpu": (
        " of the GPU",
        f"end other programs that use it, or give {option('device', 'cpu')}",
    ),
}


def given_or_found(given: Plan | None, required: Requirements) -> Plan:
    """The plan given for a job, as ``checked_plan`` finds it, or else the fastest there is.

    Args:
        given: a plan made earlier, if there is one.
        required: of the plan.

    Raises:
        InvalidInput: the plan given cannot be run.
        DoesNotFit: no plan stays within the memory allowed.
    """
    choices, stored = required.choices, required.stored
    if given is None:
        here = detect_for(choices.device, choices.ram, choices.threads, choices.gpu_memory)
        here = choose_gpus(here, choices)
        try:
            found = planning.fastest(planning.search_for(required, here))[0]
        except DoesNotFit as error:
            if stored.output_array:
                error.add_note(f"{in_units(stored.output_array)} of that are for the output array")
            raise
        _warn_beyond_available(found)
        _warn_of_idle_threads(found)
        return found
    checked = planning.checked_plan(given, required.network, choices, stored)
    _warn_beyond_available(checked)
    _warn_of_idle_threads(checked)
    return replace(checked, output=required.job.output)


def smaller_plan(failed: Plan, short: DeviceKind, required: Requirements) -> Plan:
    """The fastest plan that takes markedly less of a device's memory than another, or the least.

    Args:
        failed: the other, whose devices and threads a plan has.
        short: the device whose memory ran out.
        required: of it, too.

    Raises:
        RunFailed: there is none.
    """
    taken = failed.memory_on(short)

    def fastest_within(limit: int) -> Plan:
        here = _machine(failed, short, limit, required.choices)
        stated = here.gpus[0].memory if here.gpus and failed.device != "cpu" else None
        among = replace(required.choices, device=failed.device, gpu_memory=stated)
        again = replace(required, choices=among)
        return planning.fastest(planning.search_for(again, choose_gpus(here, among)))[0]

    limit = taken.process + int(NEXT_SHARE * (taken.total - taken.process))
    for _ in range(2):  # that, and then the least that a plan takes
        try:
            return fastest_within(limit)
        except DoesNotFit as error:
            if error.device != short or not limit < error.needed < taken.total:
                break
            limit = error.needed
    of, remedy = REMEDIES[short]
    raise RunFailed(
        f"memory{of} ran out under a plan of {in_units(taken.total)}, and none takes less; {remedy}"
    )


def _warn_beyond_available(plan: Plan) -> None:
    """Say where a plan takes more than there is, whatever it was allowed."""
    available = detect_host().host.memory
    if plan.memory.total > available:
        log.warning(
            "the plan takes %s and %s are available: the system may end the run; give %s",
            in_units(plan.memory.total),
            in_units(available),
            option("ram", f"{available // 2**20}MiB"),
        )
    if plan.gpu_memory:
        _warn_beyond_free(plan.gpu_memory.total, plan.machine.gpus[: plan.workers])


def _warn_beyond_free(taken: int, gpus: Sequence[Device]) -> None:
    """Say where a plan takes more of a GPU than is free, or this process holds already."""
    found = detect_gpus()
    free = min(found[gpu.number].free for gpu in gpus) + device_peak()
    if taken > free:
        log.warning(
            "the plan takes %s of the GPU and %s are free: the run may have to go on with a plan "
            "that takes less; give %s",
            in_units(taken),
            in_units(free),
            option("gpu_memory", f"{int(AVAILABLE_SHARE * free) // 2**20}MiB"),
        )


def _warn_of_idle_threads(plan: Plan) -> None:
    threads, cores = plan.machine.host.threads, detect_host().host.threads
    if threads > cores:
        log.warning(
            "the plan has %d threads, and this process may use %s: more are no faster; give %s",
            threads,
            counted(cores, "core"),
            option("threads", cores),
        )


def _machine(failed: Plan, short: DeviceKind, limit: int, choices: Choices) -> Machine:
    """This machine, with a limit to the memory of one device, and of the other what it was."""
    device, threads = failed.device, failed.machine.host.threads
    if short == "cpu":
        return detect_for(device, limit, threads, failed.last_device.memory)
    free = choose_gpus(detect_for(device), replace(choices, device=device)).gpus[0].memory
    return detect_for(device, failed.machine.host.memory, threads, min(limit, free))
