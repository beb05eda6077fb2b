"""Quantities as people read them."""

from __future__ import annotations


def in_units(nbytes: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 block``, ``1,200 blocks``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
