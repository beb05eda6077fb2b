"""Processes of the same Python: what starts them, and where they look for modules."""

from __future__ import annotations

import os
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


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of such a process: those of this one, and its search path.

    Args:
        more: further ones.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(more or {})}
