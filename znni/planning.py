"""Plans: found for a machine, or made earlier and checked, and made ready to run on this one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from time import perf_counter

from planner.alternatives import alternatives
from planner.exhaustive import Search
from planner.overhead import Overhead
from planner.views import Views, views
from znni.accuracy import class_of_plan, note_on, of_class
from znni.calibration.choice import cost_model
from znni.engine.patch import Measured, PatchRunner, check_runnable, not_measured
from znni.engine.tiles import Job, Region, make_job
from znni.errors import PLAN_AGAIN, DoesNotFit, InvalidInput, option
from znni.explanation import explanation
from znni.families import families
from znni.machine import Machine, detect_machine
from znni.machine_file import machine_for
from znni.network import Network
from znni.network_file import load_network
from znni.options import Accuracy, Border, Costs, Division, OutputType, check_choices
from znni.plan_checks import check_class, check_made_for
from znni.plans import Plan
from znni.primitive import catalogue
from znni.run_overhead import run_overhead
from znni.shapes import Vec3
from znni.units import in_units
from znni.weights import Weights

log = logging.getLogger("znni")


def plan(
    network: Network | str | Path,
    volume_shape: Sequence[int],
    *,
    border: Border = "valid",
    roi: Region | None = None,
    machine: Machine | str | Path | None = None,
    ram: int | str | None = None,
    threads: int | None = None,
    dtype: OutputType = "float32",
    accuracy: Accuracy = "float32",
    costs: Costs = "auto",
    micro_batches: Division = "power-of-two",
    input_itemsize: int = 4,
) -> Plan:
    """Find the fastest way to run a network over a volume.

    Args:
        network: a network, or its YAML file.
        volume_shape: extents (z, y, x) of the input, in voxels.
        border: ``valid`` or ``same``.
        roi: voxels of the volume for which output is wanted, as ``numpy.s_[10:20, :, 5:]``.
        machine: the machine to plan for, or its YAML file; by default this one.
        ram: bytes that the process may take, or such as ``8GiB``; by default what is available,
            less a margin.
        threads: worker threads; by default all cores.
        dtype: of the output.
        accuracy: the class that primitives may have; ``bfloat16`` allows relative errors of up
            to 1e-2 a layer, where that is faster.
        costs: what times are predicted from: ``measured`` by znni calibrate on this machine, the
            ``built-in`` model, or, with ``auto``, the measured ones if there are any.
        micro_batches: the sizes of the pieces that a layer's batch may be computed in, where memory
            is short: none but the whole, powers of two, or all.
        input_itemsize: bytes of one stored input value.

    Raises:
        InvalidInput: network, shape or machine cannot be used, or ``measured`` costs are missing.
        DoesNotFit: no plan stays within ``ram``.
    """
    found = search(
        network,
        volume_shape,
        border=border,
        roi=roi,
        machine=machine,
        ram=ram,
        threads=threads,
        dtype=dtype,
        accuracy=accuracy,
        costs=costs,
        micro_batches=micro_batches,
        input_itemsize=input_itemsize,
    )
    return fastest(found)[0]


def search(
    network: Network | str | Path,
    volume_shape: Sequence[int],
    *,
    border: Border = "valid",
    roi: Region | None = None,
    machine: Machine | str | Path | None = None,
    ram: int | str | None = None,
    threads: int | None = None,
    dtype: OutputType = "float32",
    accuracy: Accuracy = "float32",
    costs: Costs = "auto",
    micro_batches: Division = "power-of-two",
    input_itemsize: int = 4,
) -> Search:
    """All plans to run a network over a volume: ``fastest`` of it gives as many as are asked for.

    Takes what ``plan`` takes.

    Raises:
        InvalidInput: as ``plan``.
    """
    network = network if isinstance(network, Network) else load_network(network)
    if len(volume_shape) != 3 or min(volume_shape) < 1:
        raise InvalidInput(
            f"a volume of shape {tuple(volume_shape)} cannot be planned for; give z, y and x"
        )
    check_choices(border, dtype=dtype, accuracy=accuracy, costs=costs, micro_batches=micro_batches)
    job = make_job(network, Vec3(*map(int, volume_shape)), border, "reflect", roi)
    wanted = machine_for(machine, ram, threads)
    overhead = run_overhead(wanted, dtype, input_itemsize)
    return search_for(network, job, wanted, accuracy, costs, micro_batches, overhead)


def explain(search: Search, plan: Plan) -> str:
    """Why each layer of a plan has its primitive: the fastest others, and what they would take."""
    return explanation(plan, alternatives(plan, search.catalogue, search.model))


def look_around(search: Search, plan: Plan) -> Views:
    """What surrounds the fastest plan: other limits, sizes of patches, families of primitives."""
    return views(search, plan, families(search.catalogue))


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
        output_array: bytes of an array for the whole output, if the caller makes one.

    Raises:
        InvalidInput: the plan given cannot be run.
        DoesNotFit: no plan stays within ``ram``.
    """
    if given is None:
        here = detect_machine(ram, threads)
        overhead = run_overhead(here, dtype, input_itemsize, output_array)
        try:
            among = search_for(network, job, here, accuracy, costs, micro_batches, overhead)
            found = fastest(among)[0]
        except DoesNotFit as error:
            if output_array:
                error.add_note(f"{in_units(output_array)} of that are for the output array")
            raise
        _warn_beyond_available(found)
        return found
    checked = checked_plan(
        given,
        network,
        ram,
        threads,
        accuracy,
        dtype=dtype,
        input_itemsize=input_itemsize,
        output_array=output_array,
    )
    _warn_beyond_available(checked)
    return replace(checked, output=job.output)


def _warn_beyond_available(plan: Plan) -> None:
    available = detect_machine().host.memory
    if plan.memory.total > available:
        log.warning(
            "the plan takes %s and %s are available: the system may end the run; give %s",
            in_units(plan.memory.total),
            in_units(available),
            option("ram", f"{available // 2**20}MiB"),
        )


def search_for(
    network: Network,
    job: Job,
    machine: Machine,
    accuracy: Accuracy,
    costs: Costs,
    micro_batches: Division,
    overhead: Overhead,
) -> Search:
    """All plans for a job on a machine, by its primitives of a class."""
    primitives = of_class(catalogue(machine), accuracy)
    model = cost_model(primitives, costs, absent=machine.absent)
    return Search(network, job.output, machine, primitives, overhead, model, micro_batches)


def fastest(search: Search, count: int = 1) -> list[Plan]:
    """The fastest plans of a search, and a line in the log on how long it took."""
    start = perf_counter()
    found = search.fastest(count)
    log.info("planned in %.1f s: patch %s", perf_counter() - start, found[0].patch)
    return found


def checked_plan(
    given: Plan,
    network: Network,
    ram: int | str | None = None,
    threads: int | None = None,
    accuracy: Accuracy = "float32",
    *,
    dtype: OutputType = "float32",
    input_itemsize: int = 4,
    output_array: int = 0,
) -> Plan:
    """A plan made earlier, for the network and within the limits of now.

    Args:
        given: the plan.
        network: what is to be run.
        ram: bytes that the process may take, as in ``plan``.
        threads: worker threads, if they are to be a certain number.
        accuracy: the class that primitives may have.
        dtype: of the output.
        input_itemsize: bytes of one stored input value.
        output_array: bytes of an array for the whole output, if the caller makes one.

    Returns:
        The plan with the memory and the time that this run takes: its types may not be those it
        was made for.

    Raises:
        InvalidInput: it is for another network, takes more memory or other threads, uses what
            this machine does not have, or a primitive of a lower class than ``accuracy``.
    """
    check_made_for(given, network, threads)
    here, there = detect_machine(ram, threads).host, given.machine.host
    able = replace(there, bfloat16=there.bfloat16 and here.bfloat16)
    primitives = catalogue(Machine(able))
    check_runnable(given, primitives)
    check_class(given, primitives, accuracy)
    overhead = run_overhead(given.machine, dtype, input_itemsize, output_array)
    resident, working = given.memory.resident, given.memory.working
    beside = overhead.of_run(network, given.patch)
    memory = replace(beside, resident=resident, working=working)
    layers = given.patch_seconds
    time = overhead.time_of_run(network, given.patch, layers, resident, working)
    allowed = here.memory
    if memory.total > allowed:
        output = f", {in_units(output_array)} of it for the output array," * bool(output_array)
        raise InvalidInput(
            f"the plan takes {in_units(memory.total)}{output} and {in_units(allowed)} are allowed; "
            f"give {option('ram', f'{ceil(memory.total / 2**20)}MiB')} or more, or {PLAN_AGAIN}"
        )
    return replace(given, memory=memory, time=time)


def accuracy_of(plan: Plan) -> Accuracy:
    """The class of the least accurate primitive of a plan that this machine can run."""
    return class_of_plan(plan, catalogue(plan.machine))


def accuracy_note(plan: Plan, allowed: Accuracy) -> str:
    """What is to be said of a plan's accuracy: nothing where float32 was asked for and is used."""
    return note_on(plan, catalogue(plan.machine), allowed)


def prepare(plan: Plan, weights: Weights, measured: Measured = not_measured) -> PatchRunner:
    """A plan made ready to run on this machine; ``measured`` is told of each call of a step."""
    return PatchRunner(plan, catalogue(plan.machine), weights, measured)
