"""Rows of text as lines with columns."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


def aligned(rows: Sequence[tuple[str, ...]], left: int) -> list[str]:
    """A line for each row; all cells of a column are as wide as its widest.

    Args:
        rows: of equal length.
        left: how many columns are set to the left; those after them are set to the right.
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
