"""Plans for this machine: found, or made earlier and checked, and made ready to run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from planner.exhaustive import Overhead, fastest_plan
from znni.engine.patch import PatchRunner, check_runnable
from znni.engine.pipeline import bytes_per_input_voxel, bytes_per_output_voxel
from znni.engine.tiles import Job, Region, make_job
from znni.errors import InvalidInput
from znni.machine import detect_machine
from znni.network import Network
from znni.network_file import load_network
from znni.options import ACCURACIES, Accuracy, Border, OutputType, check_choices
from znni.plans import Plan, Step
from znni.primitive import Primitive, catalogue
from znni.shapes import Vec3
from znni.units import in_units
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
    return plan_job(network, job, ram, threads, dtype, accuracy, input_itemsize)


def plan_job(
    network: Network,
    job: Job,
    ram: int | str | None,
    threads: int | None,
    dtype: OutputType,
    accuracy: Accuracy,
    input_itemsize: int,
) -> Plan:
    """The fastest plan for a job on this machine."""
    machine = detect_machine(ram, threads)
    overhead = Overhead(
        PROCESS_BYTES, bytes_per_input_voxel(input_itemsize), bytes_per_output_voxel(dtype)
    )
    start = time.perf_counter()
    primitives = {
        name: primitive
        for name, primitive in catalogue(machine).items()
        if primitive.accuracy <= ACCURACIES[accuracy]
    }
    found = fastest_plan(network, job.output, machine, primitives, overhead)
    log.info("planned in %.1f s: patch %s", time.perf_counter() - start, found.patch)
    return found


def checked_plan(
    given: Plan,
    network: Network,
    ram: int | str | None = None,
    threads: int | None = None,
    accuracy: Accuracy = "float32",
) -> Plan:
    """A plan made earlier, for the network and within the limits of now.

    Raises:
        InvalidInput: it is for another network, takes more memory or other threads, uses what
            this machine does not have, or a primitive of a lower class than ``accuracy``.
    """
    if given.network != network:
        raise InvalidInput(
            f"the plan is for network {given.network.name}, as it was then, not for this "
            f"{network.name}; plan again with znni plan"
        )
    allowed = detect_machine(ram, threads).host.memory
    if given.memory.total > allowed:
        raise InvalidInput(
            f"the plan takes {in_units(given.memory.total)} and {in_units(allowed)} are allowed; "
            f"plan again with znni plan --ram"
        )
    if threads not in (None, given.machine.host.threads):
        raise InvalidInput(
            f"the plan is for {given.machine.host.threads} threads, not {threads}; leave "
            f"--threads out, or plan again with znni plan --threads {threads}"
        )
    primitives = catalogue(given.machine)
    check_runnable(given, primitives)
    for step in _steps(given):
        needed = _class_of(primitives[step.primitive])
        if ACCURACIES[needed] > ACCURACIES[accuracy]:
            raise InvalidInput(
                f"the plan runs layer {step.operation.name} by {step.primitive}, whose accuracy is "
                f"{needed}; allow that with --accuracy {needed}, or plan again with znni plan"
            )
    return given


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
