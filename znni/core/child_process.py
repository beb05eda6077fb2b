"""Processes of the same Python: what starts them, where they look for modules, what ended them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in a new process of the same interpreter.

    That process looks for modules in the folders of ``environment``. It does not look in the
    current folder, which may have any file.

    Args:
        module: the full name of the module.
        arguments: its arguments.
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


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none, as most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
