"""The plan of a run: one made earlier, or else the fastest there is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from znni import planning
from znni.device_arena import device_peak
from znni.errors import DoesNotFit, option
from znni.gpu_choice import choose_gpus
from znni.gpus import detect_gpus
from znni.machine import Device
from znni.plans import Plan
from znni.requirements import Requirements
from znni.this_machine import AVAILABLE_SHARE, detect_for, detect_host
from znni.units import counted, in_units

log = logging.getLogger("znni")


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
