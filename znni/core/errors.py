"""Errors, worded so that a user can act on them.

Every message says what was asked, what was found and what to do. The words hold for Python and for
the command line. The command line prints only the message and exits with the class's
``exit_code``. Errors about memory are in ``memory_errors.py``.
"""

from __future__ import annotations

import shlex
from typing import Any

from znni.core.shapes import Vec3

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


class RunFailed(ZnniError):
    """A run that stopped part-way: disk full, output not writable, or interrupted."""

    exit_code = 4


class Unreadable(RunFailed):
    """A part of a volume that cannot be read."""


class Unreachable(Unreadable):
    """A volume that cannot be reached, so that nothing is known of its contents."""


class OutputDiffers(ZnniError):
    """An output that differs from what the input and the network give."""

    exit_code = 5
