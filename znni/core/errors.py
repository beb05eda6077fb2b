"""Errors, worded so that a user can act on them.

Every message says what was asked, what was found and what to do. The words hold for Python and for
the command line. The command line prints only the message and exits with the class's
``exit_code``.
"""

from __future__ import annotations

import shlex
from math import ceil
from typing import Any

from znni.core.processors import HOST, DeviceKind, has_own_memory
from znni.core.shapes import Vec3
from znni.core.text import in_units

LONGEST = 1500  # characters of an error in one line

# Remedy for a plan that cannot be used.
PLAN_AGAIN = "plan again with znni.plan (znni plan --out)"

# Remedy for a stack whose planes are called channels or points in time, as Fiji may save it.
SAVE_AS_Z = "if they are the planes of a stack, save that axis as z"


def option(name: str, value: object) -> str:
    """Return an option as a remedy names it: in Python's form, then the command line's.

    Example:
        >>> option("border", "same")
        "border='same' (--border same)"
        >>> option("overwrite", True)
        'overwrite=True (--overwrite)'
        >>> option("gpu_memory", "8GiB")
        "gpu_memory='8GiB' (--gpu-memory 8GiB)"
        >>> option("resume", False)
        'resume=False (--no-resume)'
    """
    flag = name.replace("_", "-")
    if value is False:
        return f"{name}={value!r} (--no-{flag})"
    given = "" if value is True else f" {shlex.quote(str(value))}"
    return f"{name}={value!r} (--{flag}{given})"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, or its kind if it says nothing."""
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")


def in_one_line(error: BaseException, message: str = "") -> str:
    """Return an error's message and its notes in one line.

    A very long line is shortened in its middle, because the remedy comes last.

    Args:
        error: the error.
        message: words instead of the error's own.
    """
    if isinstance(error, MemoryError):
        message = f"memory ran out: {error}" if str(error) else "memory ran out"
        message += "; free some, or give less with ram (--ram)"
    said = [message or str(error) or type(error).__name__, *getattr(error, "__notes__", [])]
    whole = " ".join("; ".join(said).split())
    if len(whole) > LONGEST:
        whole = f"{whole[: LONGEST // 2]} [...] {whole[-LONGEST // 2 :]}"
    return whole


class ZnniError(Exception):
    """An error that a user can cause and fix."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copying and pickling, whatever arguments the class's ``__init__`` takes."""
        return BaseException.__new__, (type(self), *self.args), self.__dict__


class InvalidInput(ZnniError):
    """A network file, weights, volume, plan or option that cannot be used as given."""

    exit_code = 2


class MissingLibrary(InvalidInput):
    """A library that the input or an option needs, and that is not installed."""


class UnusableValues(InvalidInput):
    """Values in a volume that no network can take, such as NaN.

    Attributes:
        voxel: position of the first such value.
    """

    def __init__(self, message: str, voxel: Vec3) -> None:
        self.voxel = voxel
        super().__init__(message)


class DoesNotFit(ZnniError):
    """No plan stays within the memory allowed.

    Attributes:
        needed: bytes that the smallest plan tried would take.
        allowed: bytes allowed on that device.
        device: the device that is too small, ``cpu`` or ``gpu``.
        layer: the layer at which the smallest plan peaks.
        patch: the smallest patch tried, in output voxels per axis.
        sensible: about the least bytes with which a run is half as fast as it can be; 0: unknown.
        without_gpu: bytes of the host that suffice if no layer may use a GPU; 0: unknown, or more
            than are allowed.
        process: bytes of the host, among the needed ones, for the process and its libraries; 0:
            unknown, or the GPU is too small.
        gpu_libraries: bytes of these for the libraries of a GPU.

    Args:
        remedy: what to give; empty: the option of this device's memory.
    """

    exit_code = 3

    def __init__(
        self, *, needed: int, allowed: int, device: DeviceKind,
        layer: str, patch: tuple[int, int, int],
        remedy: str = "", sensible: int = 0, without_gpu: int = 0,
        process: int = 0, gpu_libraries: int = 0,
    ) -> None:  # fmt: skip
        self.needed = needed
        self.sensible = sensible
        self.without_gpu = without_gpu
        self.process = process
        self.gpu_libraries = gpu_libraries
        self.allowed = allowed
        self.device = device
        self.layer = layer
        self.patch = patch
        size = "x".join(map(str, patch))
        limit = "gpu_memory" if has_own_memory(device) else "ram"
        if not remedy:
            remedy = option(limit, f"{ceil(needed / 2**20)}MiB")
        more = "or more"
        if sensible > needed:
            more = f"at least, or {ceil(sensible / 2**20)}MiB for half of the best speed"
        if without_gpu:
            more += f", or {option('device', HOST)}, which needs {in_units(without_gpu)}"
        beside = ""
        if process:
            of_gpu = f", those of the GPU {in_units(gpu_libraries)}" if gpu_libraries else ""
            beside = f" (the process and its libraries take {in_units(process)} of it{of_gpu})"
        super().__init__(
            f"no plan fits: the smallest patch tried ({size} output voxels) needs "
            f"{in_units(needed)} on the {device}, at layer {layer}{beside}, and "
            f"{in_units(allowed)} are allowed; give {remedy} {more}, or use a smaller network"
        )


class StepDoesNotFit(ZnniError):
    """A step of a whole case does not stay within the memory allowed.

    Attributes:
        needed: bytes that the process would take at least.
        allowed: bytes that it may take.
        process: bytes, among the needed ones, for its libraries, the weights and other work.
    """

    exit_code = 3

    def __init__(self, step: str, *, needed: int, allowed: int, process: int) -> None:
        self.step, self.needed, self.allowed, self.process = step, needed, allowed, process
        super().__init__(
            f"a case does not fit: {step} needs {in_units(needed)} (the process, the weights and "
            f"other work take {in_units(process)} of it), and {in_units(allowed)} are allowed; "
            f"give {option('ram', f'{ceil(needed / 2**20)}MiB')} or more"
        )

    def beside(self, nbytes: int) -> StepDoesNotFit:
        """Return the error for a process that is allowed some bytes more, and takes them too."""
        needed, allowed = self.needed + nbytes, self.allowed + nbytes
        process = self.process + nbytes
        return StepDoesNotFit(self.step, needed=needed, allowed=allowed, process=process)


class RunFailed(ZnniError):
    """A run that stopped part-way: disk full, output not writable, or interrupted."""

    exit_code = 4


class Unreadable(RunFailed):
    """A part of a volume that cannot be read."""


class Unreachable(Unreadable):
    """A volume that cannot be reached, so that nothing is known of its contents."""


class OutOfDeviceMemory(RunFailed, MemoryError):
    """A GPU that has less memory left than a run needs."""


class OutputDiffers(ZnniError):
    """An output that differs from what the input and the network give."""

    exit_code = 5
