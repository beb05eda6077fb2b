"""The texts of options as values."""

from __future__ import annotations

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.text import counted


def are_extents(text: str) -> bool:
    """Whether a text is extents, as ``Z,Y,X`` or as they are printed: ``ZxYxX``."""
    return all(part.strip().isdecimal() for part in _parts(text))


def three_extents(text: str) -> Vec3:
    """Those that a text is."""
    parts = [int(part) for part in _parts(text)]
    if len(parts) != 3:
        given = counted(len(parts), "extent")
        raise InvalidInput(f"--volume {text} has {given}; give three: Z,Y,X")
    return Vec3(*parts)


def _parts(text: str) -> list[str]:
    return text.replace("x", ",").split(",")


def parse_roi(text: str) -> tuple[slice, slice, slice]:
    """``z0:z1,y0:y1,x0:x1``; ends may be left out."""
    try:
        ends = [part.split(":") for part in text.split(",")]
        z, y, x = (slice(*(int(end) if end else None for end in (a, b))) for a, b in ends)
    except ValueError:
        raise InvalidInput(f"--roi {text} is not a region; write it as z0:z1,y0:y1,x0:x1") from None
    return z, y, x
