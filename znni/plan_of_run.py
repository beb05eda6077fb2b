"""The plan of a run: one made earlier, or else the fastest there is."""

from __future__ import annotations

import logging
from dataclasses import replace

from znni import planning
from znni.engine.tiles import Job
from znni.errors import DoesNotFit, option
from znni.machine import detect_for, detect_host
from znni.network import Network
from znni.options import Accuracy, Costs, DeviceChoice, Division, OutputType
from znni.plans import Plan
from znni.run_overhead import run_overhead
from znni.units import in_units

log = logging.getLogger("znni")


def given_or_found(
    given: Plan | None,
    network: Network,
    job: Job,
    ram: int | str | None,
    threads: int | None,
    dtype: OutputType,
    accuracy: Accuracy,
    costs: Costs,
    micro_batches: Division,
    input_itemsize: int,
    device: DeviceChoice,
    gpu_memory: int | str | None,
    output_array: int = 0,
) -> Plan:
    """The plan given for a job, as ``checked_plan`` finds it, or else the fastest there is.

    Args:
        given: a plan made earlier, if there is one.
        network: what is to be run.
        job: which output is wanted.
        ram: bytes that the process may take, as in ``plan``.
        threads: worker threads, as in ``plan``.
        dtype: of the output.
        accuracy: the class that primitives may have.
        costs: what times are predicted from, as in ``plan``.
        micro_batches: the sizes of the pieces of a batch, as in ``plan``.
        input_itemsize: bytes of one stored input value.
        device: where the layers run, as in ``plan``.
        gpu_memory: bytes of the GPU, as in ``plan``.
        output_array: bytes of an array for the whole output, if the caller makes one.

    Raises:
        InvalidInput: the plan given cannot be run.
        DoesNotFit: no plan stays within ``ram`` and ``gpu_memory``.
    """
    if given is None:
        here = detect_for(device, ram, threads, gpu_memory)
        overhead = run_overhead(here, dtype, input_itemsize, output_array)
        try:
            among = planning.search_for(
                network, job, here, accuracy, costs, micro_batches, overhead, device
            )
            found = planning.fastest(among)[0]
        except DoesNotFit as error:
            if output_array:
                error.add_note(f"{in_units(output_array)} of that are for the output array")
            raise
        _warn_beyond_available(found)
        return found
    checked = planning.checked_plan(
        given,
        network,
        ram,
        threads,
        accuracy,
        dtype=dtype,
        input_itemsize=input_itemsize,
        device=device,
        gpu_memory=gpu_memory,
        output_array=output_array,
    )
    _warn_beyond_available(checked)
    return replace(checked, output=job.output)


def _warn_beyond_available(plan: Plan) -> None:
    available = detect_host().host.memory
    if plan.memory.total > available:
        log.warning(
            "the plan takes %s and %s are available: the system may end the run; give %s",
            in_units(plan.memory.total),
            in_units(available),
            option("ram", f"{available // 2**20}MiB"),
        )
