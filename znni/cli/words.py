"""Texts of the library in the words of the command line.

The library names an option as Python and the command line have it, as ``border='same' (--border
same)``. The command line prints its own form alone.
"""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from znni.cases.folder import CasesReport
    from znni.inference.many import ManyReport
    from znni.inference.many_dry_run import ManyDryRun

# A keyword argument, with or without its value, or a function of Python.
PYTHON = r"""[\w.]+(?:=(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s()]+))?(?:\([^()]*\))?"""
# Its form on the command line, which may have a value in parentheses.
COMMAND_LINE = r"\(((?:znni [a-z]+ )?--[^()]*(?:\([^()]*\)[^()]*)*)\)"
BOTH = re.compile(f"{PYTHON} {COMMAND_LINE}")


def on_command_line(text: str) -> str:
    """Return a text whose options are named as the command line has them.

    Example:
        >>> on_command_line("exists; give overwrite=True (--overwrite) to replace it")
        'exists; give --overwrite to replace it'
    """
    return BOTH.sub(r"\1", text) if "--" in text else text


def echo(text: object, *, err: bool = False) -> None:
    """Print a text in the words of the command line."""
    typer.echo(on_command_line(str(text)), err=err)


def show_many(report: ManyReport | CasesReport, folder: object) -> None:
    """Print how many runs went. If some failed, list them and exit with a code."""
    echo(f"{folder}: {report}")
    for failure in report.failures:
        echo(f"znni: error: {failure}", err=True)
    if report.failures:
        sys.exit(report.exit_code)


def show_dry_run(found: ManyDryRun[Any]) -> None:
    """Print what many runs would take. If some are refused, exit with a code."""
    echo("\n".join(found.lines))
    if found.failures:
        sys.exit(found.exit_code)


def lead_to_picture(*arguments: str) -> None:
    """Tell a person at a terminal how to look at an output."""
    if sys.stdout.isatty():
        echo(f"look at it: {shlex.join(['znni', 'view', *arguments])}")
