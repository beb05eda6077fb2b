"""The time and memory of a run outside its layers, which plans are made with.

Seconds are stated as the bytes that one core, or all cores, would move in that time at the nominal
memory bandwidth. They were measured on two cores of an AMD EPYC with AVX-512. There, large copies
reach the full nominal bandwidth. Calibrating a machine replaces some of these figures by measured
ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from planner.overhead import Overhead, SecondsOnce
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.phase_notes import AROUND, Kind, noted_cuda, noted_medians, with_noted
from znni.core.errors import InvalidInput
from znni.core.option_types import Costs, Packing
from znni.core.shapes import Vec3
from znni.engine.backends.registry import backend_of
from znni.engine.stages.read import ReadModel
from znni.engine.stages.stage_order import stage_models
from znni.machine.handling_times import HandlingTimes
from znni.machine.io_threads import io_threads_on
from znni.machine.machine import Machine
from znni.network.input_scaling import Percentiles, ZScore
from znni.network.network import Network
from znni.plans.job_seconds import SecondsAround
from znni.plans.stored_values import AS_COMPUTED, Stored

# Memory of the interpreter, the libraries and code compiled at first use. It was measured, and has
# a margin that also covers the pieces in which a mask is read.
PROCESS_BYTES = 512 * 2**20

# Time to read compiled code from the user's cache. Building took 0.02 to 0.05 s of the networks
# that come with znni, with transforms of kernels. The U-Net's first run in a process took 0.05 s
# more than later ones. Code that was never compiled takes longer, once.
BUILDING_SECONDS = 0.04
WARMING_SECONDS = 0.05

# Time to search for a new plan, until runs have noted their own. It took 0.1 s and more.
SEARCHING_SECONDS = 0.3

# Traffic of all cores, per byte. Spectra of kernels are made at 8 GB/s. Pages are first touched at
# 18 to 21 GB/s.
RESIDENT_TRAFFIC = 2.8
TOUCHED_TRAFFIC = 1.2

# Time per byte of pages that a virtual machine has never touched since it started. Two machines
# took 0.3 to 0.6 GB/s and one 0.8 GB/s. More threads were no faster.
COLD_SECONDS = 1 / 0.5e9

# Traffic of one core, per byte of a file that is written from the Zarr of all blocks: to copy it,
# and to compress it. TIFF took 5 to 10 ns a byte by deflate and NIfTI 21 to 25 by gzip, on cores
# that move 14 GB/s. Labels take a fifth. All threads for writing compress NIfTI.
WHOLE_TRAFFIC = 55
PACKED_WHOLE_TRAFFIC: dict[Packing, float] = {"none": 0, "deflate": 100, "gzip": 320}
SHARE_OF_LABELS = 0.2

# Traffic of one core, per value of a Zarr from which coarser resolutions are made at the end. It
# took 4 to 7 ns a value.
COARSER_TRAFFIC = 80

# Time to import zarr-python, and to make the array.
ZARR_SECONDS = 0.35

# Traffic of one core, per byte of pages that the system locks. It locked pages touched before at 40
# GB/s, on a host whose cores move 14 GB/s.
LOCKED_TRAFFIC = 0.35

# Traffic of one core, per value and pass, to count it for statistics. Wide values have more than 16
# bits. On two cores of an EPYC they took 12 ns (mean and deviation) and 26 ns (percentiles).
COUNTED_TRAFFIC = 110
COUNTED_TRAFFIC_WIDE: dict[type, int] = {ZScore: 240, Percentiles: 520}


def statistics_seconds(
    network: Network, volume: Vec3, itemsize: int, machine: Machine, overhead: Overhead
) -> float:
    """Return the seconds to read a volume for the statistics by which the input is normalized.

    Args:
        volume: the extents of the volume.
        itemsize: the bytes of one stored value.
        overhead: the models of the stages, among them reading.
    """
    scaling, maps = network.scaling, network.in_features
    if scaling.is_fixed:
        return 0.0
    core = machine.host.core_bandwidth
    wide = itemsize > 2
    read = sum(stage.value for stage in overhead.stages if isinstance(stage, ReadModel))
    seconds = maps * read * volume.volume if scaling.has_numbers else 0.0
    for kinds in ((ZScore, Percentiles), (Percentiles,)[: int(wide)]):
        counted = [type(rule) for rule in scaling.of_maps(maps) if isinstance(rule, kinds)]
        if counted:
            traffic = sum(COUNTED_TRAFFIC_WIDE[it] if wide else COUNTED_TRAFFIC for it in counted)
            seconds += max(maps * read, traffic / core) * volume.volume
    return seconds


def last_pass_seconds(network: Network, output: Vec3, machine: Machine, stored: Stored) -> float:
    """Return the seconds of the pass over all finished blocks at the end, if there is one.

    It writes a whole file, or makes coarser resolutions of a Zarr.

    Args:
        output: the extents of the output.
        stored: how values are stored.
    """
    core = machine.host.core_bandwidth
    if stored.packing is None:
        maps = stored.label_maps or network.out_features
        return COARSER_TRAFFIC / core * maps * output.volume if stored.coarser else 0.0
    packed = PACKED_WHOLE_TRAFFIC[stored.packing]
    if stored.packing == "gzip":
        packed /= io_threads_on(machine.host.threads)
    if stored.label_maps:
        values, itemsize = stored.label_maps, stored.label_itemsize
        packed *= SHARE_OF_LABELS
    else:
        values, itemsize = network.out_features, np.dtype(stored.dtype).itemsize
    each = (WHOLE_TRAFFIC + packed) / core + 1 / machine.storage.write
    return each * values * itemsize * output.volume


def around_here(around: SecondsAround, kind: Kind, *, searched: bool) -> SecondsAround:
    """Replace seconds of phases by those that runs noted on this machine, where there are notes.

    Args:
        around: the seconds to take where there are no notes.
        kind: the kind of the run.
        searched: whether the plan was searched for, not taken from an earlier search.
    """
    around = with_noted(around, kind)
    if searched:
        searching = noted_medians(kind).searching
        more = SEARCHING_SECONDS if searching is None else searching
        around = replace(around, planning=around.planning + more)
    return around


def cuda_seconds(machine: Machine) -> float:
    """Return the seconds to start a machine's GPUs: as noted, if it is this machine."""
    if not machine.gpus:
        return 0.0
    found = None if machine.absent else noted_cuda(machine)
    return backend_of(machine.gpus[0]).start_seconds if found is None else found


def handling_times(machine: Machine, costs: Costs) -> HandlingTimes | None:
    """Return the measured times of a machine; None unless it is this one and ``costs`` allows them.

    Raises:
        InvalidInput: ``measured`` costs are required and cannot be read. For ``auto``, reading the
            costs of primitives reports the failure.
    """
    if machine.absent or costs == "built-in":
        return None
    database = CostDatabase()
    try:
        if not database.there:
            return None
        named = database.rates(Conditions.of(machine.host))
    except InvalidInput:
        if costs == "measured":
            raise
        return None
    try:
        return HandlingTimes.of_rates(named)
    except KeyError:
        return None


def run_overhead(
    machine: Machine,
    stored: Stored = AS_COMPUTED,
    measured: HandlingTimes | None = None,
    warm: float = inf,
    cold_share: float = 1.0,
) -> Overhead:
    """Return the overhead of a run outside its layers.

    Args:
        machine: machine that it runs on.
        stored: stored types of input and output values.
        measured: measured times of the machine, if there are any.
        warm: bytes whose first touch takes no extra time.
        cold_share: share of the other bytes whose first touch takes extra time.
    """
    host = machine.host
    backend = backend_of(machine.gpus[0] if machine.gpus else host)
    if machine.gpus and not backend.stores:
        stored = replace(stored, scaled_on_gpu=False, made_on_gpu=False)
    touched, cold = TOUCHED_TRAFFIC / host.bandwidth, COLD_SECONDS
    once = SecondsOnce(
        building=BUILDING_SECONDS,
        warming=WARMING_SECONDS,
        cuda=cuda_seconds(machine),
        resident=RESIDENT_TRAFFIC / host.bandwidth,
        touched=measured.touched if measured else touched,
        cold=cold_share * (measured.cold if measured and measured.cold is not None else cold),
        pinned=touched + LOCKED_TRAFFIC / host.core_bandwidth,
        around=AROUND,
    )
    return Overhead(
        process=PROCESS_BYTES + stored.output_array,
        stages=stage_models(machine, stored, measured),
        once=once,
        cuda=backend.host_bytes,
        gpu=backend.device_bytes,
        worker=PROCESS_BYTES,
        workers=machine.used_gpus,
        stored=stored,
        warm=warm,
    )
