"""The plan to go on with where memory ran out in spite of what a plan promised."""

from __future__ import annotations

from dataclasses import replace

from znni.engine.tiles import Job
from znni.errors import DoesNotFit, RunFailed, option
from znni.machine import detect_for
from znni.options import Choices, Stored
from znni.planning import fastest, search_for
from znni.plans import Plan
from znni.units import in_units

# Of what a plan takes beside the process, the share that the next one may take.
SHARE = 3 / 4


def smaller_plan(failed: Plan, job: Job, choices: Choices, stored: Stored) -> Plan:
    """The fastest plan that takes markedly less memory of the host than another, or else the least.

    Args:
        failed: the other, whose device and threads a plan has.
        job: which output is wanted.
        choices: what else it may use.
        stored: how the values at both ends are stored.

    Raises:
        RunFailed: there is none.
    """
    taken, process = failed.memory.total, failed.memory.process
    limit = process + int(SHARE * (taken - process))
    device, threads = failed.device, failed.machine.host.threads
    here = detect_for(device.kind, limit, threads, device.memory)
    search = search_for(failed.network, job, here, replace(choices, device=device.kind), stored)
    try:
        return fastest(search)[0]
    except DoesNotFit as error:
        if error.needed < taken:
            return fastest(search.within(error.needed))[0]
    raise RunFailed(
        f"memory ran out under a plan of {in_units(taken)}, and none takes less; end other "
        f"programs, or give {option('threads', 1)}, a smaller type of output or a smaller network"
    )
