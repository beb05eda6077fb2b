"""Plans for this machine: found, or made earlier and checked, and made ready to run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from planner.exhaustive import Overhead, fastest_plan
from znni.engine.patch import PatchRunner, check_runnable
from znni.engine.pipeline import bytes_per_input_voxel, bytes_per_output_voxel
from znni.engine.tiles import Job, Region, make_job
from znni.errors import PLAN_AGAIN, DoesNotFit, InvalidInput, option
from znni.machine import detect_machine
from znni.network import Network
from znni.network_file import load_network
from znni.options import ACCURACIES, Accuracy, Border, OutputType, check_choices
from znni.plans import Plan, Step
from znni.primitive import Primitive, catalogue
from znni.shapes import Vec3
from znni.units import counted, in_units
from znni.weights import Weights

# What the interpreter, the libraries and code compiled at first use take, measured, with room.
PROCESS_BYTES = 512 * 2**20

log = logging.getLogger("znni")


def plan(
    network: Network | str | Path,
    volume_shape: Sequence[int],
    *,
    border: Border = "valid",
    roi: Region | None = None,
    ram: int | str | None = None,
    threads: int | None = None,
    dtype: OutputType = "float32",
    accuracy: Accuracy = "float32",
    input_itemsize: int = 4,
) -> Plan:
    """Find the fastest way to run a network over a volume.

    Args:
        network: a network, or its YAML file.
        volume_shape: extents (z, y, x) of the input, in voxels.
        border: ``valid`` or ``same``.
        roi: voxels of the volume for which output is wanted, as ``numpy.s_[10:20, :, 5:]``.
        ram: bytes that the process may take, or such as ``8GiB``; by default what is available,
            less a margin.
        threads: worker threads; by default all cores.
        dtype: of the output.
        accuracy: the class that primitives may have; ``bfloat16`` allows relative errors of up
            to 1e-2 a layer, where that is faster.
        input_itemsize: bytes of one stored input value.

    Raises:
        InvalidInput: the network or the shape cannot be used.
        DoesNotFit: no plan stays within ``ram``.
    """
    network = network if isinstance(network, Network) else load_network(network)
    if len(volume_shape) != 3 or min(volume_shape) < 1:
        raise InvalidInput(
            f"a volume of shape {tuple(volume_shape)} cannot be planned for; give z, y and x"
        )
    check_choices(border, dtype=dtype, accuracy=accuracy)
    job = make_job(network, Vec3(*map(int, volume_shape)), border, "reflect", roi)
    return _plan_job(network, job, ram, threads, dtype, accuracy, input_itemsize)


def given_or_found(
    given: Plan | None,
    network: Network,
    job: Job,
    ram: int | str | None,
    threads: int | None,
    dtype: OutputType,
    accuracy: Accuracy,
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
        input_itemsize: bytes of one stored input value.
        output_array: bytes of an array for the whole output, if the caller makes one.

    Raises:
        InvalidInput: the plan given cannot be run.
        DoesNotFit: no plan stays within ``ram``.
    """
    if given is None:
        found = _plan_job(network, job, ram, threads, dtype, accuracy, input_itemsize, output_array)
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


def _plan_job(
    network: Network,
    job: Job,
    ram: int | str | None,
    threads: int | None,
    dtype: OutputType,
    accuracy: Accuracy,
    input_itemsize: int,
    output_array: int = 0,
) -> Plan:
    """The fastest plan for a job on this machine."""
    machine = detect_machine(ram, threads)
    overhead = _overhead(dtype, input_itemsize, output_array)
    start = time.perf_counter()
    primitives = {
        name: primitive
        for name, primitive in catalogue(machine).items()
        if primitive.accuracy <= ACCURACIES[accuracy]
    }
    try:
        found = fastest_plan(network, job.output, machine, primitives, overhead)
    except DoesNotFit as error:
        if output_array:
            error.add_note(f"{in_units(output_array)} of that are for the output array")
        raise
    log.info("planned in %.1f s: patch %s", time.perf_counter() - start, found.patch)
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
        The plan with the memory that this run takes: its types may not be those it was made for.

    Raises:
        InvalidInput: it is for another network, takes more memory or other threads, uses what
            this machine does not have, or a primitive of a lower class than ``accuracy``.
    """
    if given.network != network:
        raise InvalidInput(
            f"the plan is for network {given.network.name}, as it was then, not for this "
            f"{network.name}; {PLAN_AGAIN}"
        )
    if given.machine.gpus or any(segment.device != "cpu" for segment in given.segments):
        raise InvalidInput(
            "the plan is for a machine with a GPU, which needs a version of znni with GPU "
            f"primitives; this one has none: {PLAN_AGAIN}"
        )
    planned = given.machine.host.threads
    if threads not in (None, planned):
        raise InvalidInput(
            f"the plan is for {counted(planned, 'thread')}, not {threads}; give "
            f"{option('threads', planned)}, or {PLAN_AGAIN}"
        )
    primitives = catalogue(given.machine)
    check_runnable(given, primitives)
    for step in _steps(given):
        needed = _class_of(primitives[step.primitive])
        if ACCURACIES[needed] > ACCURACIES[accuracy]:
            raise InvalidInput(
                f"the plan runs layer {step.operation.name} by {step.primitive}, whose accuracy is "
                f"{needed}; give {option('accuracy', needed)} to allow that, or {PLAN_AGAIN}"
            )
    beside = _overhead(dtype, input_itemsize, output_array).of_run(network, given.patch)
    memory = replace(beside, resident=given.memory.resident, working=given.memory.working)
    allowed = detect_machine(ram, threads).host.memory
    if memory.total > allowed:
        output = f", {in_units(output_array)} of it for the output array," * bool(output_array)
        raise InvalidInput(
            f"the plan takes {in_units(memory.total)}{output} and {in_units(allowed)} are allowed; "
            f"give {option('ram', f'{ceil(memory.total / 2**20)}MiB')} or more, or {PLAN_AGAIN}"
        )
    return replace(given, memory=memory)


def _overhead(dtype: OutputType, input_itemsize: int, output_array: int) -> Overhead:
    """What a run takes beside its layers."""
    return Overhead(
        PROCESS_BYTES + output_array,
        bytes_per_input_voxel(input_itemsize),
        bytes_per_output_voxel(dtype),
    )


def accuracy_of(plan: Plan) -> Accuracy:
    """The class of the least accurate primitive of a plan that this machine can run."""
    primitives = catalogue(plan.machine)
    classes = {_class_of(primitives[step.primitive]) for step in _steps(plan)}
    return max(classes, key=ACCURACIES.__getitem__)


def accuracy_note(plan: Plan, allowed: Accuracy) -> str:
    """What is to be said of a plan's accuracy: nothing where float32 was asked for and is used."""
    primitives = catalogue(plan.machine)
    used = accuracy_of(plan)
    if used != "float32":
        layers = [
            s.operation.name for s in _steps(plan) if _class_of(primitives[s.primitive]) == used
        ]
        error = ACCURACIES[used]
        return f"{used} in {', '.join(layers)}: relative errors of up to {error:g} a layer"
    if allowed == "float32":
        return ""
    if any(_class_of(primitive) == allowed for primitive in primitives.values()):
        return f"float32: {allowed} is allowed, and the plan makes no use of it"
    return f"float32: {allowed} is allowed, and this processor has no instructions for it"


def _class_of(primitive: Primitive) -> Accuracy:
    """The best class that a primitive keeps to."""
    kept = (name for name, error in ACCURACIES.items() if primitive.accuracy <= error)
    return next(kept)


def _steps(plan: Plan) -> list[Step]:
    return [step for segment in plan.segments for step in segment.steps]


def prepare(plan: Plan, weights: Weights) -> PatchRunner:
    """A plan made ready to run on this machine."""
    return PatchRunner(plan, catalogue(plan.machine), weights)
