"""What the speed of a primitive depends on beside itself: measurements hold under these only."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from znni.machine import Device
from znni.units import counted

# Those that the primitives' inner loops are compiled by, or call.
LIBRARIES = ("numba", "llvmlite", "numpy", "scipy", "pyfftw")

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class Conditions(NamedTuple):
    """A device and the software on it.

    Attributes:
        device: its name.
        caches: their sizes, such as ``L1d 32K, L2 1M, L3 32M``; empty where the system tells none.
        threads: worker threads.
        libraries: those that compute, with versions.
    """

    device: str
    caches: str
    threads: int
    libraries: str

    @classmethod
    def of(cls, device: Device) -> Conditions:
        """Those of a device, here and now."""
        return cls(device.name, _caches(), device.threads, _libraries())

    def __str__(self) -> str:
        return f"{self.device} with {counted(self.threads, 'thread')}, {self.libraries}"


@cache
def _caches() -> str:
    """The data caches of a core, as Linux tells them."""
    found = []
    for folder in sorted(CACHES.glob("index*")):
        level, kind, size = (_text(folder / name) for name in ("level", "type", "size"))
        if kind != "Instruction" and size:
            found.append(f"L{level}{'d' * (kind == 'Data')} {size}")
    return ", ".join(found)


@cache
def _libraries() -> str:
    return ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
