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
from znni.options import Border, OutputType, check_choices
from znni.plans import Plan
from znni.primitive import catalogue
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
    check_choices(border, dtype=dtype)
    job = make_job(network, Vec3(*map(int, volume_shape)), border, "reflect", roi)
    return plan_job(network, job, ram, threads, dtype, input_itemsize)


def plan_job(
    network: Network,
    job: Job,
    ram: int | str | None,
    threads: int | None,
    dtype: OutputType,
    input_itemsize: int,
) -> Plan:
    """The fastest plan for a job on this machine."""
    machine = detect_machine(ram, threads)
    overhead = Overhead(
        PROCESS_BYTES, bytes_per_input_voxel(input_itemsize), bytes_per_output_voxel(dtype)
    )
    start = time.perf_counter()
    found = fastest_plan(network, job.output, machine, catalogue(machine), overhead)
    log.info("planned in %.1f s: patch %s", time.perf_counter() - start, found.patch)
    return found


def checked_plan(
    given: Plan, network: Network, ram: int | str | None = None, threads: int | None = None
) -> Plan:
    """A plan made earlier, for the network and within the limits of now.

    Raises:
        InvalidInput: it is for another network, takes more memory or other threads, or uses what
            this machine does not have.
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
    check_runnable(given, catalogue(given.machine))
    return given


def prepare(plan: Plan, weights: Weights) -> PatchRunner:
    """A plan made ready to run on this machine."""
    return PatchRunner(plan, catalogue(plan.machine), weights)
