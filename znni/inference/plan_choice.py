"""Choice of a run's plan, and of a smaller plan when memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

from planner.search import Search
from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.logged import telling_if_long
from znni.core.memory_errors import DoesNotFit
from znni.core.plan_options import Choices
from znni.core.processors import GPU, HOST, DeviceKind, has_own_memory, may_use_gpu
from znni.core.text import counted, in_units
from znni.engine.backends.registry import backend_of
from znni.inference import planning
from znni.inference.devices import check_gpu
from znni.inference.gpu_choice import choose_gpus
from znni.inference.plan_checks import checked_plan
from znni.inference.request import Requirements
from znni.machine.detect import AVAILABLE_SHARE, detect_for, detect_host
from znni.machine.machine import Device, Machine
from znni.plans.plan import Plan

log = logging.getLogger("znni")

# Share of a failed plan's memory, without that of the process, that the next plan may take.
NEXT_SHARE = 3 / 4

# More memory is advised if so much of the work is repeated, the run takes so many seconds, and it
# would be so many times as fast.
MUCH_WASTED, LONG_SECONDS, FASTER = 0.9, 60.0, 3

# Where memory ran out, and the remedy, if no smaller plan exists.
REMEDIES: dict[DeviceKind, tuple[str, str]] = {
    HOST: (
        "",
        f"end other programs, or give {option('threads', 1)}, a smaller type of output or a "
        "smaller network",
    ),
    GPU: (" of the GPU", f"end other programs that use it, or give {option('device', HOST)}"),
}


def tell_nobody(*_about: object) -> None:
    """Ignore what is told."""


def given_or_found(
    given: Plan | None,
    required: Requirements,
    held: int = 0,
    tell: Callable[[float], None] = tell_nobody,
    tell_machine: Callable[[Machine], None] = tell_nobody,
) -> Plan:
    """Return the given plan after ``checked_plan``, or the fastest plan if none is given.

    Args:
        given: a plan made earlier, or None.
        required: requirements that the plan must meet.
        held: bytes that this process holds and releases if the plan needs them.
        tell: is called with the seconds of a search, if there was one.
        tell_machine: is called before a search with the machine to plan for.

    Raises:
        InvalidInput: the given plan cannot be run.
        DoesNotFit: no plan stays within the memory allowed.
    """
    choices, stored = required.choices, required.stored
    if given is None:
        search = _search_here(required, tell_machine)
        start = perf_counter()
        try:
            plan = planning.fastest(search)[0]
        except DoesNotFit as error:
            if stored.output_array:
                error.add_note(f"{in_units(stored.output_array)} of that are for the output array")
            raise
        if search.calls:  # else it was kept
            tell(perf_counter() - start)
        _warn_beyond_available(plan, held)
        _warn_of_idle_threads(plan)
        _warn_of_little_memory(search, plan)
        return plan
    checked = checked_plan(given, required.network, choices, stored, required.job)
    _warn_beyond_available(checked, held)
    _warn_of_idle_threads(checked)
    return replace(checked, output=required.job.output)


def check_choices(required: Requirements) -> None:
    """Check limits and choices for a plan without the search for one.

    Raises:
        InvalidInput: this machine has no such devices, or a limit is no size.
    """
    _search_here(required)


def _search_here(
    required: Requirements, tell_machine: Callable[[Machine], None] = tell_nobody
) -> Search:
    """Return a search over the plans of this machine that meet requirements."""
    here = machine_here(required.choices)
    tell_machine(here)
    return planning.search_for(required, here)


def machine_here(choices: Choices) -> Machine:
    """Return the part of this machine that a plan may use.

    Raises:
        InvalidInput: this machine has no such devices, or a limit is no size.
    """
    here = detect_for(choices.device, choices.ram, choices.threads, choices.gpu_memory)
    chosen = choose_gpus(here, choices)
    check_gpu(chosen, choices.device)
    return chosen


def found_for(like: Plan, required: Requirements) -> Plan:
    """Return the fastest plan for this machine with the patches of another plan, in their order.

    Args:
        like: the other plan.
        required: requirements that the plan must meet.

    Raises:
        InvalidInput: no plan with these patches stays within the memory allowed.
    """
    search, patch = _search_here(required), like.patch
    with telling_if_long(planning.SEARCH):
        if axis := like.network.swept_along:
            search = search.sweeping(axis)
        plan = search.fastest_for(patch)
    if plan:
        return plan
    memory = search.machine.host.memory
    raise InvalidInput(
        f"no plan for blocks of {patch} voxels fits into {in_units(memory)} of this "
        f"machine; give it more memory, or begin the output with a plan of smaller blocks"
    )


def smaller_plan(failed: Plan, short: DeviceKind, required: Requirements) -> Plan:
    """Return the fastest plan that takes markedly less memory than a failed one.

    If no plan is markedly smaller, this is the plan that takes the least memory.

    Args:
        failed: the plan that ran out of memory; the new plan has its devices and threads.
        short: the device whose memory ran out.
        required: requirements that the new plan must meet too.

    Raises:
        RunFailed: no plan takes less memory.
    """
    taken = failed.memory_on(short)

    def fastest_within(limit: int) -> Plan:
        here = _machine(failed, short, limit, required.choices)
        stated = here.gpus[0].memory if here.gpus and may_use_gpu(failed.device) else None
        among = replace(required.choices, device=failed.device, gpu_memory=stated)
        again = replace(required, choices=among)
        return planning.fastest(planning.search_for(again, choose_gpus(here, among)))[0]

    limit = taken.process + int(NEXT_SHARE * (taken.total - taken.process))
    for _ in range(2):  # first this limit, then the least that any plan takes
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


def _warn_beyond_available(plan: Plan, held: int) -> None:
    """Warn if a plan takes more memory than is available, whatever limit the user gave."""
    available = detect_host().host.memory + held
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
    """Warn if a plan takes more GPU memory than is free or already held by this process."""
    backend = backend_of(gpus[0])
    free = min(map(backend.free, gpus)) + backend.peak()
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


def _warn_of_little_memory(search: Search, plan: Plan) -> None:
    """Warn if a long run repeats nearly all work for want of memory that is available."""
    if plan.gpu_memory or plan.wasted_work < MUCH_WASTED or plan.seconds < LONG_SECONDS:
        return
    from planner.sensitivity import half_as_fast

    larger = half_as_fast(search, search.smallest().memory.total, HOST)
    available = detect_host().host.memory
    if larger and larger.memory.total <= available and plan.seconds > FASTER * larger.seconds:
        log.warning(
            "%s of memory is little for this network: %.0f%% of the work is repeated; with %s the "
            "run is about %.0f times as fast",
            in_units(plan.machine.host.memory),
            100 * plan.wasted_work,
            option("ram", f"{-(-larger.memory.total // 2**20)}MiB"),
            plan.seconds / larger.seconds,
        )


def _machine(failed: Plan, short: DeviceKind, limit: int, choices: Choices) -> Machine:
    """Return this machine with a memory limit for the device that ran out.

    The other device keeps the memory that it had in the failed plan.
    """
    device, threads = failed.device, failed.machine.host.threads
    if not has_own_memory(short):
        return detect_for(device, limit, threads, failed.last_device.memory)
    free = choose_gpus(detect_for(device), replace(choices, device=device)).gpus[0].memory
    return detect_for(device, failed.machine.host.memory, threads, min(limit, free))
