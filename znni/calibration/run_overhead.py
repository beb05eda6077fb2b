"""What a run takes beside its layers on a machine: the figures that plans are made with.

Seconds are stated as the bytes that a core, or all, would move in them at the nominal bandwidth of
memory. They were measured on two cores of an AMD EPYC with AVX-512, of whose nominal bandwidth
large copies reach it all. What a calibration measures on the machine at hand takes their place.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from planner.overhead import Overhead, OverheadSeconds
from znni.calibration.io_rates import HandlingTimes
from znni.core.options import AS_COMPUTED, Stored
from znni.engine.device_layers import (
    DEVICE_BYTES,
    device_bytes_per_input_value,
    device_bytes_per_output_voxel,
)
from znni.engine.pipeline import bytes_per_input_voxel, bytes_per_output_voxel
from znni.engine.workers.slots import (
    slots_bytes_per_input_value,
    slots_bytes_per_output_value,
)
from znni.machine.machine import BANDWIDTH_EXPONENT, Machine

# What the interpreter, the libraries and code compiled at first use take, measured, with room: for
# the pieces that a mask is read in, too.
PROCESS_BYTES = 512 * 2**20

# What CUDA, CuPy and the compiler take beside them.
CUDA_BYTES = 1024 * 2**20

# To begin with a GPU and load its kernels, which the user's cache may have: with the paper's
# networks 2.6 to 4.1 s before the first patch, of which the host's part is counted below.
CUDA_SECONDS = 2.0

# Libraries imported, and compiled code read from the user's cache: with n337, 0.5 to 2.1 s before
# the first patch and 1.3 s more in it. Code that was never compiled before takes longer, once.
BUILDING_SECONDS = 1.2
WARMING_SECONDS = 1.3

# Of all cores, per byte. Kernels' spectra are made at 8 GB/s; pages first touched at 18 to 21 GB/s,
# but at 0.8 where they are the first that a virtual machine touches since it started.
RESIDENT_TRAFFIC = 2.8
TOUCHED_TRAFFIC = 1.2

# Of one core, per value. Reading uint8 from the page cache and making it float32 was measured at
# 500 to 900 million values a second, float32 at 360 to 500; writing at 280 to 570; fragments are
# brought to their places at 570 to 1100. Beside that, the system copies what is stored.
CONVERTED_TRAFFIC = 14
STORED_TRAFFIC = 12
PLACED_TRAFFIC = 16
COPIED_TRAFFIC = 4  # per byte

# Of one core, per byte, beside the link to a GPU. With an H200, where a core moves 14 GB/s, common
# memory was copied there at 6.5 GB/s and new memory filled from there at 3.1; the system locked
# pages that were touched before at 40 GB/s, and copies from and to them went at 55.
LOCKED_TRAFFIC = 0.35
BROUGHT_TRAFFIC = 1.9
RETURNED_TRAFFIC = 4.3


def run_overhead(
    machine: Machine, stored: Stored = AS_COMPUTED, measured: HandlingTimes | None = None
) -> Overhead:
    """What a run takes beside its layers.

    Args:
        machine: that it runs on.
        stored: how the values at both ends are stored.
        measured: what was measured of it on the machine, if it was.
    """
    handling = _handling(machine, np.dtype(stored.dtype).itemsize, stored.input_itemsize)
    if measured:
        handling = _as_measured(handling, measured, stored, machine.host.threads)
    return Overhead(
        PROCESS_BYTES + stored.output_array,
        bytes_per_input_voxel(stored.input_itemsize),
        bytes_per_output_voxel(stored.dtype),
        CUDA_BYTES,
        DEVICE_BYTES,
        device_bytes_per_input_value(),
        device_bytes_per_output_voxel(stored.dtype),
        handling,
        PROCESS_BYTES,
        machine.used_gpus,
        slots_bytes_per_input_value(),
        slots_bytes_per_output_value(stored.dtype),
    )


def _as_measured(
    nominal: OverheadSeconds, measured: HandlingTimes, stored: Stored, threads: int
) -> OverheadSeconds:
    """The seconds, with those in the place of nominal ones that were measured."""
    largest = measured.read[max(measured.read)]
    read = measured.read.get(stored.input_itemsize, largest)
    written = measured.written[stored.dtype]
    return replace(
        nominal,
        touched=measured.touched,
        placed=measured.placed,
        voxel_in=read.seconds,
        voxel_out=written.seconds,
        lost_in=read.working / threads,
        lost_out=written.working / threads,
    )


def _handling(machine: Machine, output_itemsize: int, input_itemsize: int) -> OverheadSeconds:
    """The seconds.

    Reading and writing have a thread each, beside as many that compute as there are cores: what
    they work, and do not wait for the storage, is lost to these. On two cores, with layers that
    take two to three times as long as reading and writing, a job was measured to take, but for its
    ends, the time of its layers and half of that of the others, within 5 %.
    """
    host, storage = machine.host, machine.storage
    link = machine.gpus[0].link if machine.gpus else inf
    core = host.bandwidth / host.threads**BANDWIDTH_EXPONENT
    converted, stored = CONVERTED_TRAFFIC / core, STORED_TRAFFIC / core
    copied = COPIED_TRAFFIC / core
    return OverheadSeconds(
        building=BUILDING_SECONDS,
        warming=WARMING_SECONDS,
        cuda=CUDA_SECONDS,
        resident=RESIDENT_TRAFFIC / host.bandwidth,
        touched=TOUCHED_TRAFFIC / host.bandwidth,
        voxel_in=converted + input_itemsize / storage.read,
        voxel_out=stored + output_itemsize / storage.write,
        lost_in=(converted + input_itemsize * copied) / host.threads,
        lost_out=(stored + output_itemsize * copied) / host.threads,
        placed=PLACED_TRAFFIC / core,
        pinned=TOUCHED_TRAFFIC / host.bandwidth + LOCKED_TRAFFIC / core,
        handed=1 / link,
        brought=1 / link + BROUGHT_TRAFFIC / core,
        returned=output_itemsize * (1 / link + RETURNED_TRAFFIC / core),
    )
