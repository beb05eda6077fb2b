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
from planner.limits import memory_of_run
from planner.overhead import Overhead
from planner.views import Views, views
from znni.accuracy import class_of_plan, note_on, of_class
from znni.calibration.choice import cost_model
from znni.device_choice import check_device, primitives_to_try
from znni.engine.checks import check_runnable
from znni.engine.device_patch import DevicePatchRunner
from znni.engine.patch import PatchRunner, Runner
from znni.engine.tiles import Job, Region, make_job
from znni.engine.traversal import Measured, not_measured
from znni.errors import PLAN_AGAIN, InvalidInput, option
from znni.explanation import explanation
from znni.families import families
from znni.machine import Machine, detect_for
from znni.machine_file import machine_for
from znni.network import Network
from znni.network_file import load_network
from znni.options import (
    Accuracy,
    Border,
    Costs,
    DeviceChoice,
    Division,
    OutputType,
    check_choices,
)
from znni.plan_checks import check_class, check_made_for
from znni.plan_memory import PlanMemory
from znni.plans import Plan
from znni.primitive import Catalogue, catalogue
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
    device: DeviceChoice = "auto",
    gpu_memory: int | str | None = None,
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
        device: where the layers run: the ``cpu``, the ``gpu``, or, with ``auto``, the first GPU if
            there is one that can run them all, and else the CPU.
        gpu_memory: as ``ram``, of the GPU, beside what CUDA takes for itself.

    Raises:
        InvalidInput: network, shape, machine or device cannot be used, or ``measured`` costs are
            missing.
        DoesNotFit: no plan stays within ``ram`` and ``gpu_memory``.
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
        device=device,
        gpu_memory=gpu_memory,
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
    device: DeviceChoice = "auto",
    gpu_memory: int | str | None = None,
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
    check_choices(
        border,
        dtype=dtype,
        accuracy=accuracy,
        costs=costs,
        micro_batches=micro_batches,
        device=device,
    )
    job = make_job(network, Vec3(*map(int, volume_shape)), border, "reflect", roi)
    wanted = machine_for(machine, ram, threads, gpu_memory)
    overhead = run_overhead(wanted, dtype, input_itemsize)
    return search_for(network, job, wanted, accuracy, costs, micro_batches, overhead, device)


def explain(search: Search, plan: Plan) -> str:
    """Why each layer of a plan has its primitive: the fastest others, and what they would take."""
    return explanation(plan, alternatives(plan, search.catalogue, search.model))


def look_around(search: Search, plan: Plan) -> Views:
    """What surrounds the fastest plan: other limits, sizes of patches, families of primitives."""
    return views(search, plan, families(search.catalogue))


def search_for(
    network: Network,
    job: Job,
    machine: Machine,
    accuracy: Accuracy,
    costs: Costs,
    micro_batches: Division,
    overhead: Overhead,
    device: DeviceChoice,
) -> Search:
    """All plans for a job on a machine, by its primitives of a class on one device."""
    tried = primitives_to_try(network, of_class(catalogue(machine), accuracy), machine, device)
    if costs == "measured":
        tried = tried[-1:]  # of hosts alone there are measurements

    def among(primitives: Catalogue) -> Search:
        model = cost_model(primitives, costs, absent=machine.absent)
        return Search(network, job.output, machine, primitives, overhead, model, micro_batches)

    *preferred, last = tried
    searches = map(among, preferred)
    return next((search for search in searches if search.fits()), None) or among(last)


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
    device: DeviceChoice = "auto",
    gpu_memory: int | str | None = None,
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
        device: where the layers are to run, if that matters.
        gpu_memory: bytes of the GPU, as in ``plan``.
        output_array: bytes of an array for the whole output, if the caller makes one.

    Returns:
        The plan with the memory and the time that this run takes: its types may not be those it
        was made for.

    Raises:
        InvalidInput: it is for another network or device, takes more memory or other threads, uses
            what this machine does not have, or a primitive of a lower class than ``accuracy``.
    """
    check_made_for(given, network, threads)
    here = detect_for(given.device.kind, ram, threads, gpu_memory)
    check_device(given, here, device)
    there = given.machine.host
    able = Machine(replace(there, bfloat16=there.bfloat16 and here.host.bfloat16), here.gpus)
    primitives = catalogue(able)
    check_runnable(given, primitives)
    check_class(given, primitives, accuracy)
    layers = given.device_memory
    overhead = run_overhead(given.machine, dtype, input_itemsize, output_array)
    held = layers.resident, layers.working
    on_host, on_gpu = memory_of_run(network, given.patch, given.device, overhead, *held)
    kind, seconds = given.device.kind, given.patch_seconds
    time = overhead.time_of_run(network, given.patch, kind, seconds, *held)
    checked = replace(given, memory=on_host, gpu_memory=on_gpu, time=time)
    output = f", {in_units(output_array)} of it for the output array," * bool(output_array)
    _check_allowed("ram", checked.memory, here.host.memory, output)
    if checked.gpu_memory:
        _check_allowed("gpu_memory", checked.gpu_memory, here.gpus[0].memory, " of the GPU")
        return replace(checked, machine=replace(given.machine, gpus=here.gpus))
    return checked


def _check_allowed(limit: str, memory: PlanMemory, allowed: int, what: str) -> None:
    if memory.total > allowed:
        raise InvalidInput(
            f"the plan takes {in_units(memory.total)}{what} and {in_units(allowed)} are allowed; "
            f"give {option(limit, f'{ceil(memory.total / 2**20)}MiB')} or more, or {PLAN_AGAIN}"
        )


def accuracy_of(plan: Plan) -> Accuracy:
    """The class of the least accurate primitive of a plan that this machine can run."""
    return class_of_plan(plan, catalogue(plan.machine))


def accuracy_note(plan: Plan, allowed: Accuracy) -> str:
    """What is to be said of a plan's accuracy: nothing where float32 was asked for and is used."""
    return note_on(plan, catalogue(plan.machine), allowed)


def prepare(
    plan: Plan,
    weights: Weights,
    measured: Measured = not_measured,
    dtype: OutputType = "float32",
) -> Runner:
    """A plan made ready to run on this machine.

    Args:
        plan: what to run.
        weights: of its network.
        measured: told of each call of a step.
        dtype: of the output.

    Raises:
        RunFailed: the GPU fails, or its memory does not suffice.
    """
    primitives = catalogue(plan.machine)
    if plan.device.kind == "gpu":
        return DevicePatchRunner(plan, primitives, weights, measured, dtype)
    return PatchRunner(plan, primitives, weights, measured)
