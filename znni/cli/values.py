"""Values of options, parsed from their texts, and mistakes in them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from znni.cli.options import WindowOptions
from znni.core.errors import InvalidInput
from znni.core.nearest import nearest
from znni.core.shapes import Vec3
from znni.core.text import counted

if TYPE_CHECKING:
    from znni.network.network import Network

# Reasons why an option's value is wrong, by pydantic's name for the error.
REASONS = {
    "int_parsing": "{input!r} is not an integer",
    "float_parsing": "{input!r} is not a number",
    "greater_than_equal": "{input} is less than {ge:g}",
    "value_error": "{error}",
}

EXTENTS = "three whole numbers of 1 or more with commas between: Z,Y,X"


def are_extents(text: str) -> bool:
    """Return whether a text gives extents, as ``Z,Y,X`` or in the printed form ``ZxYxX``."""
    return all(part.strip().isdecimal() for part in _parts(text))


def look_like_extents(text: str) -> bool:
    """Return whether a text has digits and signs that people write between extents, and no more."""
    return bool(re.fullmatch(r"(?=.*[0-9])[-+0-9 ,;:x×*.()\[\]]+", text))


def three_extents(text: str, name: str = "--volume") -> Vec3:
    """Return the three extents in the text of an option."""
    parts = [int(part) for part in _parts(text)]
    if len(parts) != 3:
        given = counted(len(parts), "extent")
        raise InvalidInput(f"{name} {text} has {given}; give {EXTENTS}")
    return Vec3(*parts)


def _parts(text: str) -> list[str]:
    return text.replace("x", ",").split(",")


def in_windows(network: Network, options: WindowOptions) -> Network:
    """Return a network with the windows of a command line, or as its file has them.

    Raises:
        InvalidInput: an option has no windows to be about, or they do not suit the network.
    """
    given: dict[str, Any] = {
        name: value for name, value in vars(options).items() if value is not None
    }
    if not given:
        return network
    from znni.network.geometry import with_window
    from znni.network.window import Window

    if options.mirror is not None:
        given["mirror"] = options.mirror.replace(",", "")
    window = given.pop("window", None)
    if window is not None and not are_extents(window):
        raise InvalidInput(f"--window {window} has no extents; give {EXTENTS}")
    if window is not None:
        given["size"] = three_extents(window, "--window")
    if network.window:
        return with_window(network, replace(network.window, by_default=False, **given))
    if window is None:
        name = next(iter(given))
        raise InvalidInput(f"--{name} is about windows; give --window Z,Y,X too")
    return with_window(network, Window(**given))


def usage_error(error: typer.TyperException) -> str:
    """Return the mistake in a command line, and the command whose help to read."""
    from pydantic import ValidationError  # slow to import, and needed for errors alone

    if isinstance(error.__cause__, ValidationError):
        found = error.__cause__.errors()[0]
        reason = REASONS.get(found["type"], "{msg}")
        error.message = reason.format(**found, **found.get("ctx", {}))
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context else ""
    message = error.format_message().rstrip(".?")
    return (_wrong_choice(message) or message) + hint


def _wrong_choice(message: str) -> str | None:
    """Return the message about an unknown choice, worded as znni's own errors are."""
    found = re.fullmatch(r"Invalid value for '(.+?)': '(.*)' is not one of (.+)", message)
    if found is None:
        return None
    name, value, listed = found.groups()
    choices = re.findall("'(.*?)'", listed)
    close = nearest(value, choices)
    asked = f"; did you mean {close}?" if close else ""
    return f"{name} is {value!r}; choose one of {', '.join(choices)}{asked}"
