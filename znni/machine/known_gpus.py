"""Figures of this machine's GPUs as CUDA found them, kept in the user's cache.

With them, and with the free memory by the driver, a plan needs neither CUDA nor CuPy, which take
about a second to start. The figures are valid for one driver, one CuPy and the same GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from znni.core.value_cache import ValueCache
from znni.machine.cuda import cupy_folders
from znni.machine.nvml import Driver

# Environment variables by which CUDA chooses GPUs, and orders them.
CHOOSING = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

# The most bytes of a GPU that CUDA may plausibly take for itself. The figure changes by less than
# the second number from run to run.
MOST_TAKEN = 2 * 2**30
STEADY_TAKEN = 32 * 2**20


class KnownGpu(NamedTuple):
    """Figures of a GPU as CUDA found them.

    Attributes:
        uuid: its identity, as the driver tells it.
        taken: bytes of its memory that CUDA takes for a process.
        name: name by the driver.
        capability: its own compute capability, such as 90.
        multiprocessors: their number.
        kilohertz: their clock.
        bits: width of the bus to its memory.
        memory_kilohertz: clock of the memory.
    """

    uuid: str
    taken: int
    name: str
    capability: int
    multiprocessors: int
    kilohertz: int
    bits: int
    memory_kilohertz: int


NOTES = ValueCache[list[KnownGpu]]("gpus", 2, list)  # in 1, CUDA seems to take what workers took


def known_gpus(driver: Driver) -> list[KnownGpu]:
    """Return what is known of the GPUs, in CUDA's order; nothing if that is not all.

    Args:
        driver: the driver and its GPUs.
    """
    found = NOTES.load(_about(driver)) or []
    there = {gpu.uuid for gpu in driver.gpus}
    return found if all(gpu.uuid in there for gpu in found) else []


def store_gpus(driver: Driver, gpus: Sequence[KnownGpu]) -> None:
    """Keep what CUDA found about all GPUs, in its order, if that is plausible and new.

    Args:
        driver: the driver and its GPUs.
        gpus: what CUDA found; if it is nothing, what was kept is forgotten.
    """
    before = known_gpus(driver)
    if not all(0 <= gpu.taken <= MOST_TAKEN for gpu in gpus):
        return
    if len(before) == len(gpus) and all(map(_alike, before, gpus)):
        return
    NOTES.store(_about(driver), list(gpus))


def _alike(one: KnownGpu, other: KnownGpu) -> bool:
    same = one._replace(taken=0) == other._replace(taken=0)
    return same and abs(one.taken - other.taken) < STEADY_TAKEN


def _about(driver: Driver) -> Sequence[object]:
    """Return all on which the figures depend: a driver, its GPUs, CuPy, and the choice of GPUs."""
    return [
        driver.version,
        [gpu.uuid for gpu in driver.gpus],
        cupy_folders(),
        [os.environ.get(name) for name in CHOOSING],
    ]
