"""Figures of this machine's GPUs as CUDA found them, kept in the user's cache.

With them, and with the free memory by the driver, a plan needs neither CUDA nor CuPy, which take
about a second to start. The figures are valid for one driver, one CuPy and the same GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from znni.core.user_cache import Notes
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


def known_gpus(driver: Driver) -> list[KnownGpu]:
    """Return what is known of the GPUs, in CUDA's order; nothing if that is not all.

    Args:
        driver: the driver and its GPUs.
    """
    found = NOTES.kept(_about(driver)) or []
    there = {gpu.uuid for gpu in driver.gpus}
    return found if all(gpu.uuid in there for gpu in found) else []


def keep_gpus(driver: Driver, gpus: Sequence[KnownGpu]) -> None:
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
    NOTES.keep(_about(driver), [gpu._asdict() for gpu in gpus])


def _alike(one: KnownGpu, other: KnownGpu) -> bool:
    same = one._replace(taken=0) == other._replace(taken=0)
    return same and abs(one.taken - other.taken) < STEADY_TAKEN


def _sound(gpu: KnownGpu) -> KnownGpu:
    """Return what is known of a GPU after a check.

    Raises:
        ValueError: a value has another type, or is negative.
    """
    texts, numbers = (gpu.uuid, gpu.name), (gpu.taken, *gpu[3:])
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(number, int) and number >= 0 for number in numbers
    ):
        raise ValueError(f"{gpu} is no GPU")
    return gpu


def _parsed(entries: list[dict[str, Any]]) -> list[KnownGpu]:
    return [_sound(KnownGpu(**entry)) for entry in entries]


NOTES = Notes("gpus", 2, _parsed)  # in 1, CUDA may seem to take what workers took


def _about(driver: Driver) -> Sequence[object]:
    """Return all on which the figures depend: a driver, its GPUs, CuPy, and the choice of GPUs."""
    return [
        driver.version,
        [gpu.uuid for gpu in driver.gpus],
        cupy_folders(),
        [os.environ.get(name) for name in CHOOSING],
    ]
