"""CUDA by way of CuPy, imported where it is needed, and what it reports as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from znni.core.errors import InvalidInput, OutOfDeviceMemory, RunFailed, option

INSTALL = (
    "install it with: pip install 'znni[gpu]' (CUDA 13) or pip install 'znni[gpu12]' (CUDA 12)"
)

CUDA_ERROR_OUT_OF_MEMORY = 2


class LibraryFailed(Exception):
    """What a library of CUDA's reports that CuPy has no error for.

    Attributes:
        status: CUDA's of the same meaning, if it is that memory does not suffice; else 0.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@cache
def cupy() -> Any:
    """The module ``cupy``. That it is there does not mean that there is a GPU.

    Raises:
        InvalidInput: it is not installed, or cannot be imported.
    """
    try:
        return import_module("cupy")
    except ImportError as error:
        reason = "is not installed" if error.name == "cupy" else f"cannot be imported ({error})"
        raise InvalidInput(f"a GPU needs CuPy, which {reason}; {INSTALL}") from None


@contextmanager
def device_errors(name: str) -> Iterator[None]:
    """Make one error of what CUDA and its libraries raise within a ``with`` block.

    Args:
        name: of the GPU.

    Raises:
        OutOfDeviceMemory: its memory does not suffice.
        RunFailed: it fails in another way.
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
