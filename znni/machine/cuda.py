"""Access to CUDA through CuPy, imported when it is needed, and its errors as znni's errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.memory_errors import OutOfDeviceMemory
from znni.core.packages import package_folders

CHOICES = "pip install 'znni[gpu]' (CUDA 13) or pip install 'znni[gpu12]' (CUDA 12)"
INSTALL = f"install it with: {CHOICES}"

CUDA_ERROR_OUT_OF_MEMORY = 2

# The environment variable that lets a GPU stand for an older one, by compute capability, such as
# 8.0. Plans and kernels are those of the older GPU. The driver translates its kernels.
STAND_IN = "ZNNI_GPU_CAPABILITY"

# From this compute capability on, an architecture has instructions of its own, such as Hopper's
# products of whole warp groups. They are compiled only for a target whose name ends in a, and no
# other GPU runs them.
OWN_INSTRUCTIONS = 90


class LibraryFailed(Exception):
    """A failure in one of CUDA's libraries for which CuPy has no error class.

    Attributes:
        status: CUDA's status for "out of memory" if memory does not suffice; else 0.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@cache
def cupy() -> Any:
    """Return the module ``cupy``. The module can be installed without a GPU.

    Raises:
        InvalidInput: CuPy is not installed, or cannot be imported, or several of its packages are
            installed, which overwrite each other's files.
    """
    if len(packages := cupy_packages()) > 1:
        raise InvalidInput(
            f"several CuPy packages are installed ({', '.join(packages)}), which overwrite each "
            f"other; remove all of them with pip uninstall, then {INSTALL}"
        )
    if not _keeps_kernels():
        os.environ["CUPY_CACHE_DIR"] = os.sep  # any folder that need not be made
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
    try:
        return import_module("cupy")
    except ImportError as error:
        reason = "is not installed" if error.name == "cupy" else f"cannot be imported ({error})"
        raise InvalidInput(f"a GPU needs CuPy, which {reason}; {INSTALL}") from None


def _keeps_kernels() -> bool:
    """Return whether CuPy can keep its own kernels. Else it cannot be imported, unless told so."""
    named = os.environ.get("CUPY_CACHE_DIR")
    with suppress(OSError, RuntimeError):  # a user of a container may have no home
        folder = Path.home() / ".cupy" / "kernel_cache" if named is None else Path(named)
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK)
    return False


def cupy_packages() -> list[str]:
    """Return the names of the installed packages that bring the module ``cupy``."""
    return sorted({folder.partition("-")[0].replace("_", "-") for folder in cupy_folders()})


def cupy_folders() -> list[str]:
    """Return names and versions of these packages, such as ``cupy_cuda13x-14.2.0``."""
    return [name for name in package_folders() if re.match(r"cupy(_cuda|-|$)", name)]


@contextmanager
def device_errors(name: str) -> Iterator[None]:
    """Turn errors of CUDA and its libraries within a ``with`` block into znni's errors.

    Args:
        name: name of the GPU.

    Raises:
        OutOfDeviceMemory: the GPU's memory does not suffice.
        RunFailed: the GPU fails in another way.
    """
    cuda = cupy().cuda
    failures = (
        cuda.memory.OutOfMemoryError,
        cuda.runtime.CUDARuntimeError,
        cuda.driver.CUDADriverError,
        LibraryFailed,
    )
    try:
        yield
    except failures as error:
        if getattr(error, "status", CUDA_ERROR_OUT_OF_MEMORY) == CUDA_ERROR_OUT_OF_MEMORY:
            remedy = (
                f"plan with less, such as {option('gpu_memory', '4GiB')}, or free what others take"
            )
            raise OutOfDeviceMemory(
                f"{name} has too little memory left ({error}); {remedy}"
            ) from error
        remedy = f"run again, or with {option('device', 'cpu')}"
        raise RunFailed(f"{name} failed ({error}); {remedy}") from error


def compute_capability(device: Any) -> int:
    """Return the compute capability that kernels are made for, such as 90 for 9.0.

    It is the GPU's own, unless the variable ``STAND_IN`` names an older one.

    Args:
        device: CuPy's device.

    Raises:
        InvalidInput: the variable names none that the GPU can stand for.
    """
    return stood_for(int(device.compute_capability))


def stood_for(own: int) -> int:
    """Return the compute capability that kernels are made for on a GPU of some capability.

    Raises:
        InvalidInput: the variable ``STAND_IN`` names none that the GPU can stand for.
    """
    if (named := os.environ.get(STAND_IN)) is None:
        return own
    if not re.fullmatch(r"\d+\.\d", named) or not (
        (declared := int(named.replace(".", ""))) < min(own, OWN_INSTRUCTIONS)
    ):
        raise InvalidInput(
            f"{STAND_IN} is {named!r}: this GPU, of compute capability {own / 10:.1f}, can stand "
            "for older ones below 9.0; give one such as 8.0, or unset the variable"
        )
    return declared


def stands_in() -> bool:
    """Return True if GPUs stand for older ones."""
    return STAND_IN in os.environ
