"""Processes of the same Python: what starts them, where they look for modules, what ended them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from znni.core import system
from znni.core.errors import InvalidInput


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in a new process of the same interpreter.

    That process looks for modules in the folders of ``environment``. It does not look in the
    current folder, which may have any file.

    Args:
        module: the full name of the module.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def command_of_program(program: str) -> list[str]:
    """Return the command that runs the text of a program, as ``command_of`` runs a module."""
    return [sys.executable, "-P", "-c", program]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of such a process: those of this one, and its search path.

    Args:
        more: further ones.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(more or {})}


def check_takes_descriptors() -> None:
    """Refuse what needs processes that take open files along, where the system has none.

    Raises:
        InvalidInput: the system has none.
    """
    if not system.PASSES_DESCRIPTORS:
        raise InvalidInput(
            "several GPUs, clusters and the plugin for napari need processes that take open files "
            "along, which this system does not have; use znni infer on one device, or Linux"
        )


def start_with(
    descriptors: Sequence[int],
    command: Sequence[str],
    more: Mapping[str, str] | None = None,
    *,
    output: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that takes open descriptors along, and return it.

    Ctrl-C in a terminal does not reach it, because it leads a process group of its own.

    Args:
        descriptors: the descriptors. They have the same numbers there.
        command: the command, such as that of ``command_of``.
        more: variables that it has beside those of ``environment``.
        output: takes what it writes; None: this process's own outputs take it.

    Raises:
        InvalidInput: the system has no such processes.
        OSError: it cannot be started.
    """
    check_takes_descriptors()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment(more),
        pass_fds=descriptors,
        process_group=0,
    )


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none, as most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
