"""Detection of the machine at hand."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import ceil

import psutil

from znni.core.packages import BACKENDS, offers
from znni.core.processors import GPU, HOST, DeviceChoice, may_use_gpu
from znni.core.text import in_units
from znni.machine import control_groups
from znni.machine.gpus import detect_gpus
from znni.machine.machine import BANDWIDTH_EXPONENT, Device, Machine, limited
from znni.machine.processor import (
    nominal_flops,
    pairs_per_cycle,
    processor_features,
    processor_name,
)

log = logging.getLogger("znni")

# Share of the memory that the system calls available. The rest is left for page cache and other
# processes.
AVAILABLE_SHARE = 0.9

# The number of leading bits that available bytes are rounded down to: at most 3 to 6 % are lost.
STEADY_BITS = 5

# Nominal memory bandwidth in bytes per second, until measured costs replace it.
BANDWIDTH_OF_ONE_CORE = 14e9


def detect_machine(
    ram: int | str | None = None, threads: int | None = None, gpu_memory: int | str | None = None
) -> Machine:
    """Return this machine, limited to what a plan may use.

    Args:
        ram: bytes of host memory that a plan may use, as a number or as ``8GiB``. The default is
            the available memory less a margin.
        threads: number of worker threads; by default one for every core this process may use.
        gpu_memory: bytes of each GPU's memory, as for ``ram``, beside what CUDA takes for itself.

    Raises:
        InvalidInput: ``ram`` or ``gpu_memory`` is not a size, or one of these is not positive.
    """
    found = (replace(it, memory=steady(it.memory * AVAILABLE_SHARE)) for it in detect_gpus())
    gpus = (*found, *_brought())
    made = limited(replace(detect_host(), gpus=gpus), ram, threads, gpu_memory)
    _warn_beyond(made.host.memory)
    return made


def detect_for(
    device: DeviceChoice,
    ram: int | str | None = None,
    threads: int | None = None,
    gpu_memory: int | str | None = None,
) -> Machine:
    """Return this machine for layers on a device; for ``cpu`` its GPUs are not touched.

    Args:
        device: where the layers run.
        ram: as in ``detect_machine``.
        threads: as in ``detect_machine``.
        gpu_memory: as in ``detect_machine``.

    Raises:
        InvalidInput: as ``detect_machine``.
    """
    if not may_use_gpu(device):
        return detect_host(ram, threads)
    return detect_machine(ram, threads, gpu_memory)


def detect_host(ram: int | str | None = None, threads: int | None = None) -> Machine:
    """Return this machine without its GPUs, which are not touched.

    Args:
        ram: as in ``detect_machine``.
        threads: as in ``detect_machine``.

    Raises:
        InvalidInput: as ``detect_machine``.
    """
    cores, features = usable_cores(), processor_features()
    host = Device(
        kind=HOST,
        name=processor_name(),
        memory=steady(_available_memory() * AVAILABLE_SHARE),
        threads=cores,
        flops=cores * nominal_flops(features),
        bandwidth=BANDWIDTH_OF_ONE_CORE * cores**BANDWIDTH_EXPONENT,
        bfloat16=features.get("avx512bf16", False),
        pairs_per_cycle=pairs_per_cycle(),
    )
    made = limited(Machine(host), ram, threads)
    _warn_beyond(made.host.memory)
    return made


@cache
def _warn_beyond(memory: int) -> None:
    """Warn if a plan may take more memory than there is, once for each limit."""
    most, left = int(psutil.virtual_memory().total), control_groups.memory_left()
    if left is not None:
        most = min(most, left + int(psutil.Process().memory_info().rss))
    if memory > most:
        log.warning(
            "the %s of ram (--ram) are more than the %s of this machine; a run may be killed",
            in_units(memory),
            in_units(most),
        )


def _brought() -> Iterator[Device]:
    """Yield the devices that installed packages find, each with the name of its backend."""
    for offer in offers(BACKENDS):
        for device in offer.load().devices():
            yield replace(device, kind=GPU, backend=offer.entry.name)


def steady(memory: float) -> int:
    """Return the bytes rounded down, so that some megabytes more or less change nothing.

    So the same job finds the plan that was kept for it.
    """
    step = 1 << max(0, int(memory).bit_length() - STEADY_BITS)
    return int(memory) // step * step


def usable_cores() -> int:
    """Return the number of cores that the process may use, within a container's limit."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, max(1, ceil(control_groups.processors() or cores)))


def _available_memory() -> int:
    """Return the bytes available, within a container's limit."""
    available = int(psutil.virtual_memory().available)
    left = control_groups.memory_left()
    return available if left is None else min(available, left)
