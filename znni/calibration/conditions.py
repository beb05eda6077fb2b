"""The conditions, besides the primitive, under which a measurement is valid."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from znni.core.system import text_of
from znni.core.text import counted
from znni.machine.machine import Device

# Libraries that compile the primitives' inner loops or are called by them, on the host and on a
# GPU. The GPU libraries have a name for each version of CUDA.
LIBRARIES = ("numba", "llvmlite", "numpy", "scipy", "pyfftw")
GPU_LIBRARIES = (
    "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12",
    "nvidia-cufft", "nvidia-cufft-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
    "nvidia-cudnn-frontend",
)  # fmt: skip

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class Conditions(NamedTuple):
    """A device and its software.

    Attributes:
        device: its name; for a GPU also its compute capability.
        caches: sizes such as ``L1d 32K, L2 1M, L3 32M``. Empty if the system does not tell them,
            and for a GPU, whose name determines them.
        threads: worker threads; 0 for a GPU.
        libraries: libraries that compute, with versions.
    """

    device: str
    caches: str
    threads: int
    libraries: str

    @classmethod
    def of(cls, device: Device) -> Conditions:
        """Return the current conditions of a device."""
        if device.has_own_memory:
            name = f"{device.name} (compute capability {device.capability / 10:.1f})"
            return cls(name, "", 0, _gpu_libraries())
        return cls(device.name, _caches(), device.threads, _libraries())

    def __str__(self) -> str:
        threads = f" with {counted(self.threads, 'thread')}" if self.threads else ""
        return f"{self.device}{threads}, {self.libraries}"


@cache
def _caches() -> str:
    """Return the data caches of a core, as Linux reports them."""
    found = []
    for folder in sorted(CACHES.glob("index*")):
        level, kind, size = (text_of(folder / name) for name in ("level", "type", "size"))
        if kind != "Instruction" and size:
            found.append(f"L{level}{'d' * (kind == 'Data')} {size}")
    return ", ".join(found)


@cache
def _libraries() -> str:
    return ", ".join(f"{name} {_version(name) or 'absent'}" for name in LIBRARIES)


@cache
def _gpu_libraries() -> str:
    """Return the installed packages with versions; a system's own libraries are left out."""
    return ", ".join(f"{name} {found}" for name in GPU_LIBRARIES if (found := _version(name)))


def _version(name: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
