"""Rows of results as Markdown."""

from __future__ import annotations

from typing import Literal

from bench.columns import COLUMNS, Forms
from bench.record import Kind, Row

NOTE = "note"
ABSENT = "-"


def table(kind: Kind | Literal["choices"], rows: list[Row]) -> str:
    """Rows as a Markdown table; a last column says what was measured in part, or not at all."""
    cells = [[*COLUMNS[kind], NOTE]]
    for row in rows:
        note = row.get("skipped") or row.get("measured")
        cells.append([_filled(forms, row) for forms in COLUMNS[kind].values()])
        cells[-1].append(note if isinstance(note, str) else "")
    used = [i for i in range(len(cells[0])) if any(r[i] not in {ABSENT, ""} for r in cells[1:])]
    widths = {i: max(len(row[i]) for row in cells) for i in used}
    lines = ["| " + " | ".join(row[i].ljust(widths[i]) for i in used) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (widths[i] + 2) for i in used) + "|")
    return "\n".join(lines)


def _filled(forms: Forms, row: Row) -> str:
    """The cell, or a dash where the row lacks values of every form."""
    values = {name: value for name, value in row.items() if value is not None}
    for form in (forms,) if isinstance(forms, str) else forms:
        try:
            return form.format_map(values)
        except KeyError:
            continue
    return ABSENT
