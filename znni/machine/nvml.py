"""Questions to the NVIDIA driver before CUDA starts: which GPUs there are, and their free memory.

The management library (NVML) answers within some hundredths of a second.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

# Answers of the library.
NO_PERMISSION = 4
NOT_SUPPORTED = 3

# The most bytes of a text.
LONGEST = 96


class Seen(NamedTuple):
    """A GPU as the driver describes it.

    Attributes:
        uuid: its identity, such as ``GPU-5cdc1b31-...``.
        free: bytes of free memory.
    """

    uuid: str
    free: int


class Driver(NamedTuple):
    """The driver and the GPUs that this process may use.

    Attributes:
        version: the driver's version.
        gpus: the GPUs, in the driver's order.
    """

    version: str
    gpus: tuple[Seen, ...]


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Failed(Exception):
    """The library did not answer."""


def look() -> Driver | None:
    """Return the driver and its GPUs; None if an answer is missing, or if a GPU is divided."""
    library = _library()
    if library is None:
        return None
    try:
        count = ctypes.c_uint()
        _done(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        gpus = (_gpu(library, number) for number in range(count.value))
        version = _text(library.nvmlSystemGetDriverVersion)
        return Driver(version, tuple(gpu for gpu in gpus if gpu))
    except (_Failed, AttributeError):  # an old library lacks functions
        return None


@cache
def _library() -> Any:
    """Return the library, ready; None if there is none."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        _done(library.nvmlInit_v2())
    except (OSError, AttributeError, _Failed):
        return None
    return library


def _gpu(library: Any, number: int) -> Seen | None:
    """Return a GPU; None if this process may not use it.

    Raises:
        _Failed: the library does not answer, or the GPU is divided into instances.
    """
    handle = ctypes.c_void_p()
    status = library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
    if status == NO_PERMISSION:
        return None
    _done(status)
    divided, later = ctypes.c_uint(), ctypes.c_uint()
    status = library.nvmlDeviceGetMigMode(handle, ctypes.byref(divided), ctypes.byref(later))
    if divided.value or status not in (0, NOT_SUPPORTED):
        raise _Failed
    memory = _Memory()
    _done(library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))

    def uuid(text: Any, length: int) -> int:
        return int(library.nvmlDeviceGetUUID(handle, text, length))

    return Seen(_text(uuid), int(memory.free))


def _text(ask: Callable[[Any, int], int]) -> str:
    text = ctypes.create_string_buffer(LONGEST)
    _done(ask(text, LONGEST))
    return text.value.decode()


def _done(status: int) -> None:
    if status:
        raise _Failed
