"""Results as JSON, with the machine, the date and the command that gave them."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from znni.machine import detect_machine

LIBRARIES = ("znni", "numpy", "numba", "pyfftw", "torch")


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows of results with what is needed to judge and repeat them."""
    host = detect_machine().host
    record = {
        "command": shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {
            "processor": host.name,
            "threads": host.threads,
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "libraries": {name: _version(name) for name in LIBRARIES},
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """Rows as a Markdown table; ``columns`` maps keys to format specifications."""
    cells = [list(columns)]
    cells += [
        [
            format(row[key], spec) if row.get(key) is not None else "-"
            for key, spec in columns.items()
        ]
        for row in rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
