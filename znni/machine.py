"""The hardware that a plan is for."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import ceil, inf
from pathlib import Path
from typing import Literal, TypeAlias

import psutil

from znni import control_groups
from znni.errors import InvalidInput, option
from znni.gpus import Gpu, detect_gpus
from znni.options import DeviceChoice, memory_size

# A share of what the system calls available is left to it: page cache, other processes.
AVAILABLE_SHARE = 0.9

# A core's nominal figures, until measured costs replace them: float32 operations per cycle by
# SIMD width (two fused multiply-adds a cycle), clock, and memory bandwidth. Cores share the
# memory: from 1 to 16 of them, what they get grew like their number to the power of 2/3.
FLOPS_PER_CYCLE = {"avx512f": 64, "avx2": 32, "neon": 16}
BASELINE_FLOPS_PER_CYCLE = 8
NOMINAL_HERTZ = 2.5e9
BANDWIDTH_OF_ONE_CORE = 14e9
BANDWIDTH_EXPONENT = 2 / 3

# Bytes per second that HDF5 moves to and from the system's page cache, which is about what solid
# state drives sustain behind it; disks and networks are slower.
NOMINAL_STORAGE = 2e9

# Bytes per second between host memory and a GPU, each way, from a compute capability on: copies of
# pinned memory over 16 lanes of PCI Express 5, as measured with an H200, and estimates for 4 and 3.
LINKS = ((90, 55e9), (80, 24e9), (0, 12e9))


DeviceKind: TypeAlias = Literal["cpu", "gpu"]

# What computes the layers of a plan: the host, a GPU, or first the one and then the other.
Processors: TypeAlias = Literal["cpu", "gpu", "cpu+gpu"]


@dataclass(frozen=True)
class Device:
    """A processor with memory of its own.

    Attributes:
        kind: ``cpu`` or ``gpu``.
        name: for reports.
        memory: bytes that a plan may use.
        threads: worker threads (1 for a GPU).
        flops: nominal float32 operations per second, all threads.
        bandwidth: nominal bytes per second to and from memory.
        bfloat16: whether it multiplies bfloat16 and adds in float32 (AVX512_BF16).
        capability: of a GPU, its compute capability, 90 for 9.0; 0 where it is not known.
        cudnn: whether NVIDIA's cuDNN is installed for it.
        link: of a GPU, nominal bytes per second between it and the host's memory, each way.
        number: of a GPU, its place among those that CUDA sees.

    Raises:
        InvalidInput: a rate is not positive, or not finite.
    """

    kind: DeviceKind
    name: str
    memory: int
    threads: int
    flops: float
    bandwidth: float
    bfloat16: bool = False
    capability: int = 0
    cudnn: bool = False
    link: float = LINKS[-1][1]
    number: int = 0

    def __post_init__(self) -> None:
        _check_rates(self.name, flops=self.flops, bandwidth=self.bandwidth, link=self.link)


@dataclass(frozen=True)
class Storage:
    """Where volumes lie.

    Attributes:
        read: nominal bytes per second.
        write: nominal bytes per second.

    Raises:
        InvalidInput: one is not positive, or not finite.
    """

    read: float = NOMINAL_STORAGE
    write: float = NOMINAL_STORAGE

    def __post_init__(self) -> None:
        _check_rates("storage", read=self.read, write=self.write)


def _check_rates(owner: str, **rates: float) -> None:
    for name, rate in rates.items():
        if not 0 < rate < inf:
            raise InvalidInput(f"{owner} has {name} {rate!r}; give a positive number a second")


@dataclass(frozen=True)
class Machine:
    """A host and its GPUs.

    Attributes:
        host: its processors and memory.
        gpus: beside them; a plan uses the first ones.
        absent: whether it was described, and not found by looking at it.
        storage: where volumes are read and written.
        used_gpus: how many GPUs of a plan that uses them compute patches at the same time.
    """

    host: Device
    gpus: tuple[Device, ...] = ()
    absent: bool = False
    storage: Storage = Storage()
    used_gpus: int = 1


def detect_machine(
    ram: int | str | None = None,
    threads: int | None = None,
    gpu_memory: int | str | None = None,
) -> Machine:
    """This machine.

    Args:
        ram: bytes of host memory that a plan may use, as a number or as ``8GiB``; by default
            what is available now, less a margin.
        threads: worker threads; by default one for every core this process may use.
        gpu_memory: as ``ram``, of each GPU, beside what CUDA takes for itself.

    Raises:
        InvalidInput: ``ram`` or ``gpu_memory`` is not a size, or one of these is not positive.
    """
    gpus = tuple(map(_gpu, detect_gpus()))
    return limited(replace(detect_host(), gpus=gpus), ram, threads, gpu_memory)


def detect_for(
    device: DeviceChoice,
    ram: int | str | None = None,
    threads: int | None = None,
    gpu_memory: int | str | None = None,
) -> Machine:
    """This machine, for layers on a device: its GPUs are left alone where these are on the ``cpu``.

    Args:
        device: where the layers run.
        ram: as of ``detect_machine``.
        threads: as of ``detect_machine``.
        gpu_memory: as of ``detect_machine``.

    Raises:
        InvalidInput: as ``detect_machine``.
    """
    if device == "cpu":
        return detect_host(ram, threads)
    return detect_machine(ram, threads, gpu_memory)


def detect_host(ram: int | str | None = None, threads: int | None = None) -> Machine:
    """This machine without its GPUs, which are left alone.

    Args:
        ram: as of ``detect_machine``.
        threads: as of ``detect_machine``.

    Raises:
        InvalidInput: as ``detect_machine``.
    """
    cores, features = usable_cores(), _processor_features()
    host = Device(
        kind="cpu",
        name=_processor_name(),
        memory=int(_available_memory() * AVAILABLE_SHARE),
        threads=cores,
        flops=cores * _flops_per_cycle(features) * NOMINAL_HERTZ,
        bandwidth=BANDWIDTH_OF_ONE_CORE * cores**BANDWIDTH_EXPONENT,
        bfloat16=features.get("avx512bf16", False),
    )
    return limited(Machine(host), ram, threads)


def limited(
    machine: Machine,
    ram: int | str | None,
    threads: int | None,
    gpu_memory: int | str | None = None,
) -> Machine:
    """A machine of which a plan may use a part.

    Args:
        machine: as it is, with a thread for every core.
        ram: bytes of host memory, as a number or as ``8GiB``; by default the machine's.
        threads: worker threads; more than there are cores are no faster.
        gpu_memory: bytes of each GPU's memory; by default the machine's.

    Raises:
        InvalidInput: ``ram`` or ``gpu_memory`` is not a size, or one of these is not positive.
    """
    host = machine.host
    memory = _memory_limit("ram", ram)
    cores, threads = host.threads, host.threads if threads is None else threads
    if threads < 1:
        raise InvalidInput(f"{threads} threads cannot compute; give at least 1 (of {cores})")
    busy = min(threads, cores) / cores
    part = replace(
        host,
        memory=memory or host.memory,
        threads=threads,
        flops=host.flops * busy,
        bandwidth=host.bandwidth * busy**BANDWIDTH_EXPONENT,
    )
    each = _memory_limit("gpu_memory", gpu_memory)
    gpus = tuple(replace(gpu, memory=each or gpu.memory) for gpu in machine.gpus)
    return replace(machine, host=part, gpus=gpus)


def _memory_limit(name: str, given: int | str | None) -> int | None:
    """Bytes that an option allows; None where it is not given."""
    if given is None:
        return None
    try:
        memory = memory_size(given)
    except ValueError as error:
        raise InvalidInput(f"{option(name, given)}: {error}") from None
    if memory < 1:
        of = "RAM" if name == "ram" else "GPU memory"
        raise InvalidInput(f"{memory} bytes of {of} hold nothing; give a size such as 8GiB")
    return memory


def _gpu(found: Gpu) -> Device:
    return Device(
        kind="gpu",
        name=found.name,
        memory=int(found.free * AVAILABLE_SHARE),
        threads=1,
        flops=found.flops,
        bandwidth=found.bandwidth,
        capability=found.capability,
        cudnn=find_spec("cudnn") is not None,
        link=nominal_link(found.capability),
    )


def nominal_link(capability: int) -> float:
    """Bytes per second between host memory and a GPU of a compute capability, each way."""
    return next(link for least, link in LINKS if capability >= least)


def usable_cores() -> int:
    """Cores that the process may use, within the time that a container gives it."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, max(1, ceil(control_groups.processors() or cores)))


def _available_memory() -> int:
    """Bytes available, within the limit that a container sets."""
    available = int(psutil.virtual_memory().available)
    left = control_groups.memory_left()
    return available if left is None else min(available, left)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _processor_features() -> Mapping[str, bool]:
    """Instruction sets by LLVM's names, and whether the processor has them."""
    import llvmlite.binding

    features: Mapping[str, bool] = llvmlite.binding.get_host_cpu_features()
    return features


def _flops_per_cycle(features: Mapping[str, bool]) -> int:
    found = (rate for name, rate in FLOPS_PER_CYCLE.items() if features.get(name))
    return next(found, BASELINE_FLOPS_PER_CYCLE)
