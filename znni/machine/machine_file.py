"""Machine descriptions in YAML files, to plan for a machine that is not at hand.

A file gives the nominal figures that ``detect_machine`` finds for this machine. They alone decide
which primitives are offered, on whatever processor the planning runs. For example, a device says
whether it multiplies bfloat16. There is one exception: in a few primitives, the workspace for sums
depends on the registers of the processor at hand, by less than a hundred KiB a thread. On the
machine that runs a plan, the workspace is checked to the byte.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from znni.core.plan_options import memory_size
from znni.core.processors import DeviceKind
from znni.core.shipped import MACHINES
from znni.core.yaml_file import Count, Entry, Name, YamlFile
from znni.machine.detect import AVAILABLE_SHARE
from znni.machine.machine import (
    NOMINAL_STORAGE,
    OLDEST_CAPABILITY,
    Device,
    Machine,
    Storage,
    nominal_link,
)
from znni.machine.processor import PAIRS_PER_CYCLE

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
LEAST_RATE, LARGEST_RATE = 1e6, 1e21  # per second; real devices are far from both
LARGEST_MEMORY = 2**60
MOST_PAIRS = 64  # vectors per cycle; real processors multiply few


def _memory(value: object) -> int:
    with suppress(ValueError):  # the error below covers it
        if isinstance(value, int | str) and not isinstance(value, bool):
            size = memory_size(value)
            if 0 < size <= LARGEST_MEMORY:
                return size
    raise ValueError("give a size of memory such as 16GiB")


def _rate(value: object, unit: str) -> float:
    """Return a number per second, from ``5.8e12`` or, for the unit flop, ``5.8 Tflop/s``."""
    if isinstance(value, str) and (
        found := re.fullmatch(rf"(\d+(?:\.\d+)?) *([kMGTP]?){unit}/s", value)
    ):
        value = float(found[1]) * PREFIXES[found[2]]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not LEAST_RATE <= value <= LARGEST_RATE
    ):
        raise ValueError(f"give a rate such as 250 G{unit}/s")
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("give true or false")
    return value


def _pairs(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_PAIRS:
        raise ValueError("give vectors in a cycle: 1, or 0.5 for Intel's Xeons")
    return float(value)


def _capability(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 100:
        raise ValueError("give a compute capability such as 9.0")
    if (capability := round(10 * value)) < OLDEST_CAPABILITY:
        raise ValueError(
            f"give {OLDEST_CAPABILITY / 10} or more: older GPUs have no CUDA 12, which znni needs"
        )
    return capability


Memory = Annotated[int, BeforeValidator(_memory)]
Flops = Annotated[float, BeforeValidator(lambda value: _rate(value, "flop"))]
Bandwidth = Annotated[float, BeforeValidator(lambda value: _rate(value, "B"))]
Truth = Annotated[bool, BeforeValidator(_truth)]
Pairs = Annotated[float, BeforeValidator(_pairs)]
Capability = Annotated[int, BeforeValidator(_capability)]


class _DeviceEntry(Entry):
    name: Name
    memory: Memory
    flops: Flops
    bandwidth: Bandwidth


class _GpuEntry(_DeviceEntry):
    capability: Capability = 0
    cudnn: Truth = True
    link: Bandwidth | None = None


class _HostEntry(_DeviceEntry):
    threads: Count
    bfloat16: Truth = False
    pairs_per_cycle: Pairs = PAIRS_PER_CYCLE


class _StorageEntry(Entry):
    read: Bandwidth = NOMINAL_STORAGE
    write: Bandwidth = NOMINAL_STORAGE


class _MachineFile(Entry):
    host: _HostEntry
    gpus: list[_GpuEntry] = Field(default_factory=list)
    storage: _StorageEntry = Field(default_factory=_StorageEntry)


def load_machine(path: str | Path) -> Machine:
    """Read a machine file, or the one that comes with znni under a name such as ``rtx4090``.

    The file has a ``host`` and, optionally, a list of ``gpus``. Each has a ``name``, ``memory``,
    nominal float32 ``flops`` and memory ``bandwidth``.

    The host also has ``threads``, one for every core. It may say that it multiplies ``bfloat16``,
    and how many vectors of bfloat16 pairs a core multiplies in a cycle (``pairs_per_cycle``).

    A GPU may give its compute ``capability``, such as 9.0, and whether ``cudnn`` is installed. It
    may also give the bytes per second of its ``link`` to the host's memory, each way. By default
    the link follows from the capability.

    ``storage`` may give the bytes per second of volumes, ``read`` and ``write``.

    Args:
        path: path of a YAML file, or a name.

    Returns:
        The machine, marked as absent. A plan may use the same share of its memory as of this
        machine's.

    Raises:
        InvalidInput: there is no such file, or it is not a machine; the error names the line. No
            machine of this name comes with znni; the error lists those that do.
    """
    entries = YamlFile(MACHINES.found(Path(path)), "machine").checked(_MachineFile)
    host = entries.host
    return Machine(
        replace(
            _device("cpu", host, host.threads),
            bfloat16=host.bfloat16,
            pairs_per_cycle=host.pairs_per_cycle,
        ),
        tuple(map(_gpu, entries.gpus)),
        absent=True,
        storage=Storage(entries.storage.read, entries.storage.write),
    )


def _gpu(entry: _GpuEntry) -> Device:
    return replace(
        _device("gpu", entry),
        capability=entry.capability,
        cudnn=entry.cudnn,
        link=entry.link or nominal_link(entry.capability),
    )


def _device(kind: DeviceKind, entry: _DeviceEntry, threads: int = 1) -> Device:
    return Device(
        kind=kind,
        name=entry.name,
        memory=int(entry.memory * AVAILABLE_SHARE),
        threads=threads,
        flops=entry.flops,
        bandwidth=entry.bandwidth,
    )
