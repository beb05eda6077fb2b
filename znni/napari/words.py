"""Texts of the library in the words of the window, whose controls stand for options."""

from __future__ import annotations

import re

from znni.core.volume import SAME_COMMAND

CONTROLS = {"ram": "Memory", "device": "Device", "border": "Edges", "channel": "Channel"}
OVERWRITE = "tick overwrite, or name another output"

# An option in Python's form, with or without its value, then in that of the command line.
OPTION = re.compile(r"(?P<name>\w+)(?:=(?P<value>'[^']*'|[^\s()]+))? \(--[^()]*\)")


def in_window(text: str) -> str:
    """Return a text whose options are named as the window has them.

    Example:
        >>> in_window("out.h5: exists; give overwrite=True (--overwrite) to delete it first")
        'out.h5: exists; tick overwrite to delete it first'
        >>> in_window("give ram='700MiB' (--ram 700MiB) or more")
        'give Memory 700MiB or more'
    """
    text = text.replace(SAME_COMMAND, "press Plan to go on")
    text = OPTION.sub(_as_control, text).replace("give tick", "tick")
    return text.replace("to replace it, or another output", "to replace it, or name another output")


def _as_control(option: re.Match[str]) -> str:
    """Return an option as its control, or as it is if it has none."""
    name, value = option["name"], option["value"]
    if name == "overwrite":
        return "tick overwrite"
    if name not in CONTROLS:
        return option[0]
    return " ".join([CONTROLS[name], (value or "").strip("'")]).strip()
