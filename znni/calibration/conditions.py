"""What the speed of a primitive depends on beside itself: measurements hold under these only."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from znni.core.text import counted
from znni.machine.machine import Device

# Those that the primitives' inner loops are compiled by, or call: on the host, and on a GPU, where
# each has a name for every version of CUDA.
LIBRARIES = ("numba", "llvmlite", "numpy", "scipy", "pyfftw")
GPU_LIBRARIES = (
    "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12",
    "nvidia-cufft", "nvidia-cufft-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
    "nvidia-cudnn-frontend",
)  # fmt: skip

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class Conditions(NamedTuple):
    """A device and the software on it.

    Attributes:
        device: its name; of a GPU, with its compute capability.
        caches: their sizes, such as ``L1d 32K, L2 1M, L3 32M``; empty where the system tells none,
            and of a GPU, whose name tells all of it.
        threads: worker threads; 0 for a GPU.
        libraries: those that compute, with versions.
    """

    device: str
    caches: str
    threads: int
    libraries: str

    @classmethod
    def of(cls, device: Device) -> Conditions:
        """Those of a device, here and now."""
        if device.kind == "gpu":
            name = f"{device.name} (compute capability {device.capability / 10:.1f})"
            return cls(name, "", 0, _gpu_libraries())
        return cls(device.name, _caches(), device.threads, _libraries())

    def __str__(self) -> str:
        threads = f" with {counted(self.threads, 'thread')}" if self.threads else ""
        return f"{self.device}{threads}, {self.libraries}"


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
    return ", ".join(f"{name} {_version(name) or 'absent'}" for name in LIBRARIES)


@cache
def _gpu_libraries() -> str:
    """Those that are there; what a system brings along under no such name is not told."""
    return ", ".join(f"{name} {found}" for name in GPU_LIBRARIES if (found := _version(name)))


def _version(name: str) -> str:
    """Of an installed package; empty where it is not."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
