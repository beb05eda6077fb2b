"""The plan to go on with where memory ran out in spite of what a plan promised."""

from __future__ import annotations

from dataclasses import replace

from znni.errors import DoesNotFit, RunFailed, option
from znni.gpu_choice import choose_gpus
from znni.machine import DeviceKind, Machine
from znni.options import Choices
from znni.planning import fastest, search_for
from znni.plans import Plan
from znni.requirements import Requirements
from znni.this_machine import detect_for
from znni.units import in_units

# Of what a plan takes beside the process, the share that the next one may take.
SHARE = 3 / 4

# Where none takes less: whose memory it was, and the remedy.
SHORT: dict[DeviceKind, tuple[str, str]] = {
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
        return fastest(search_for(again, choose_gpus(here, among)))[0]

    limit = taken.process + int(SHARE * (taken.total - taken.process))
    for _ in range(2):  # that, and then the least that a plan takes
        try:
            return fastest_within(limit)
        except DoesNotFit as error:
            if error.device != short or not limit < error.needed < taken.total:
                break
            limit = error.needed
    of, remedy = SHORT[short]
    raise RunFailed(
        f"memory{of} ran out under a plan of {in_units(taken.total)}, and none takes less; {remedy}"
    )


def _machine(failed: Plan, short: DeviceKind, limit: int, choices: Choices) -> Machine:
    """This machine, with a limit to the memory of one device, and of the other what it was."""
    device, threads = failed.device, failed.machine.host.threads
    if short == "cpu":
        return detect_for(device, limit, threads, failed.last_device.memory)
    free = choose_gpus(detect_for(device), replace(choices, device=device)).gpus[0].memory
    return detect_for(device, failed.machine.host.memory, threads, min(limit, free))
