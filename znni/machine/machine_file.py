"""Machines as YAML files, to plan for one that is not at hand.

A file gives the nominal figures that ``detect_machine`` finds of this one. What primitives are
offered follows from them alone, never from the processor that plans: a device says whether it
multiplies bfloat16. Only the workspace in which a few primitives lay out their sums is that of the
registers at hand, within a hundred KiB a thread; where a plan is run, it is checked to the byte.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from znni.core.options import memory_size
from znni.core.yaml_file import Count, Entry, Name, YamlFile
from znni.machine.detect import AVAILABLE_SHARE, detect_machine
from znni.machine.machine import (
    NOMINAL_STORAGE,
    Device,
    DeviceKind,
    Machine,
    Storage,
    limited,
    nominal_link,
)
from znni.machine.processor import PAIRS_PER_CYCLE

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
LEAST_RATE, LARGEST_RATE = 1e6, 1e21  # per second: few devices are near
LARGEST_MEMORY = 2**60
MOST_PAIRS = 64  # as of vectors that few processors multiply in a cycle


def _memory(value: object) -> int:
    with suppress(ValueError):  # told below, as any other value
        if isinstance(value, int | str) and not isinstance(value, bool):
            size = memory_size(value)
            if 0 < size <= LARGEST_MEMORY:
                return size
    raise ValueError("give a size of memory such as 16GiB")


def _rate(value: object, unit: str) -> float:
    """A number per second, from ``5.8e12`` or, where the unit is ``flop``, ``5.8 Tflop/s``."""
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
    return round(10 * value)


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
    """Read a machine file.

    Args:
        path: a YAML file with ``host`` and, optionally, a list of ``gpus``. Each has a ``name``,
            ``memory``, nominal float32 ``flops`` and memory ``bandwidth``; the host has
            ``threads``, too, one for every core, and may say that it multiplies ``bfloat16``, and
            how many vectors of pairs of it a core multiplies in a cycle (``pairs_per_cycle``); a
            GPU may give its compute ``capability``, such as 9.0, say that ``cudnn`` is not
            installed for it, and give the bytes per second of its ``link`` to the host's memory,
            each way, which otherwise follows from the capability.
            ``storage`` may give the bytes per second that volumes are ``read`` and ``write`` at.

    Returns:
        The machine, absent. Of its memory a plan may use as large a share as on this one.

    Raises:
        InvalidInput: no such file, or its contents are not a machine; names the line.
    """
    entries = YamlFile(Path(path), "machine").checked(_MachineFile)
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


def machine_for(
    given: Machine | str | Path | None,
    ram: int | str | None,
    threads: int | None,
    gpu_memory: int | str | None = None,
) -> Machine:
    """The machine to plan for, within limits.

    Args:
        given: a machine, or the file of one; by default this one.
        ram: bytes of host memory that a plan may use, as a number or as ``8GiB``; by default
            what there is, less a margin.
        threads: worker threads; by default one for every core.
        gpu_memory: as ``ram``, of each GPU.

    Raises:
        InvalidInput: the file is not a machine's, ``ram`` or ``gpu_memory`` is not a size, or one
            of these is not positive.
    """
    if given is None:
        return detect_machine(ram, threads, gpu_memory)
    machine = given if isinstance(given, Machine) else load_machine(given)
    return limited(machine, ram, threads, gpu_memory)


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
