"""The plan to go on with where memory ran out in spite of what a plan promised."""

from __future__ import annotations

from znni.engine.tiles import Job
from znni.errors import DoesNotFit, RunFailed, option
from znni.machine import detect_for
from znni.options import Accuracy, Costs, Division, OutputType
from znni.planning import fastest, search_for
from znni.plans import Plan
from znni.run_overhead import run_overhead
from znni.units import in_units

# Of what a plan takes beside the process, the share that the next one may take.
SHARE = 3 / 4


def smaller_plan(
    failed: Plan,
    job: Job,
    dtype: OutputType,
    accuracy: Accuracy,
    costs: Costs,
    micro_batches: Division,
    input_itemsize: int,
    output_array: int = 0,
) -> Plan:
    """The fastest plan that takes markedly less memory of the host than another, or else the least.

    Args:
        failed: the other; a plan has its threads.
        job: which output is wanted.
        dtype: of the output.
        accuracy: the class that primitives may have.
        costs: what times are predicted from.
        micro_batches: the sizes of the pieces that a layer's batch may be computed in.
        input_itemsize: bytes of one stored input value.
        output_array: bytes of an array for the whole output, if the caller makes one.

    Raises:
        RunFailed: there is none.
    """
    taken, process = failed.memory.total, failed.memory.process
    limit = process + int(SHARE * (taken - process))
    device, threads = failed.device, failed.machine.host.threads
    here = detect_for(device.kind, limit, threads, device.memory)
    overhead = run_overhead(here, dtype, input_itemsize, output_array)
    search = search_for(
        failed.network, job, here, accuracy, costs, micro_batches, overhead, device.kind
    )
    try:
        return fastest(search)[0]
    except DoesNotFit as error:
        if error.needed < taken:
            return fastest(search.within(error.needed))[0]
    raise RunFailed(
        f"memory ran out under a plan of {in_units(taken)}, and none takes less; end other "
        f"programs, or give {option('threads', 1)}, a smaller type of output or a smaller network"
    )
