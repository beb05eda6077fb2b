"""Quantities and tables as text for people."""

from __future__ import annotations

from collections.abc import Sequence


def in_units(nbytes: float) -> str:
    """Return bytes in the most readable unit."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def duration(seconds: float) -> str:
    """Return seconds as years, days, hours, minutes and seconds."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        days = hours / 24
        return f"{days:.1f} days" if days < 730 else f"{days / 365.25:,.1f} years"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 block``, ``1,200 blocks``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


GAP = "  "


def aligned(rows: Sequence[tuple[str, ...]], left: int) -> list[str]:
    """Return a line for each row; all cells of a column are as wide as its widest.

    Args:
        rows: rows of equal length.
        left: number of columns aligned to the left; the others are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(GAP.join(cells))
    return lines
