"""Saved results as one Markdown page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.ceilings import Ceilings
from bench.gpu_ceilings import GpuCeilings
from bench.record import Record
from bench.table import table

HEADER = """# Results

Made by `python -m bench report` from the files beside this page. Times are wall-clock medians.
`floor` is the least time that the declared operations and bytes take at the measured ceilings, and
`achieved` its share of the time; errors are relative to float64. Commands, and the model's times,
are those of the revision that was measured: an earlier one where none is named.
"""


def report(records: Mapping[str, Record]) -> str:
    """A page with a section for each file: machine, date, command, ceilings and table.

    Args:
        records: by the name of their file.
    """
    return "\n".join([HEADER, *(_section(name, record) for name, record in records.items())])


def _section(file: str, record: Record) -> str:
    machine, libraries = record.about["machine"], record.about["libraries"]
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
    revision = record.about.get("revision")
    lines = [
        f"## {file}\n",
        f"{machine['processor']}, {machine['threads']} threads, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}; {record.about['date']}; {versions}"
        f"{f'; revision {revision}' if revision else ''}.\n",
        f"```\n{record.about['command']}\n```\n",
        *(f"- {_limits(measured)}" for measured in record.about["ceilings"]),
        f"\n{table(record.kind, record.rows)}\n",
    ]
    return "\n".join(lines)


def _limits(measured: Mapping[str, Any]) -> Ceilings | GpuCeilings:
    """A record's ceilings, of a host's threads or of a GPU."""
    return GpuCeilings(**measured) if "device" in measured else Ceilings(**measured)
