"""The texts of options as values."""

from __future__ import annotations

from znni.errors import InvalidInput
from znni.shapes import Vec3
from znni.units import counted


def three_extents(text: str) -> Vec3:
    """``Z,Y,X``."""
    parts = [int(part) for part in text.split(",")]
    if len(parts) != 3:
        given = counted(len(parts), "extent")
        raise InvalidInput(f"--volume {text} has {given}; give three: Z,Y,X")
    return Vec3(*parts)


def parse_roi(text: str) -> tuple[slice, slice, slice]:
    """``z0:z1,y0:y1,x0:x1``; ends may be left out."""
    try:
        ends = [part.split(":") for part in text.split(",")]
        z, y, x = (slice(*(int(end) if end else None for end in (a, b))) for a, b in ends)
    except ValueError:
        raise InvalidInput(f"--roi {text} is not a region; write it as z0:z1,y0:y1,x0:x1") from None
    return z, y, x
