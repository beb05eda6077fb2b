"""Mistakes on the command line, each in one plain line."""

from __future__ import annotations

import typer
from pydantic import ValidationError

# What is wrong with an option's value, by pydantic's name for it.
REASONS = {
    "int_parsing": "{input!r} is not an integer",
    "float_parsing": "{input!r} is not a number",
    "greater_than_equal": "{input} is less than {ge:g}",
    "value_error": "{error}",
}


def usage_error(error: typer.TyperException) -> str:
    """What is wrong with a command line, and which command's help to see."""
    if isinstance(error.__cause__, ValidationError):
        found = error.__cause__.errors()[0]
        reason = REASONS.get(found["type"], "{msg}")
        error.message = reason.format(**found, **found.get("ctx", {}))
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context else ""
    return error.format_message().rstrip(".?") + hint
