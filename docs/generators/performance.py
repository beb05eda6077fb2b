"""Pages of performance, from the records in ``bench/results``."""

from __future__ import annotations

import re
from pathlib import Path

from performance_tables import TABLES, Records, caption

from bench.record import load
from bench.report import report
from bench.table import table

RESULTS = Path(__file__).parents[2] / "bench" / "results"
RECORDS = {path.name: load(path) for path in sorted(RESULTS.glob("*.json"))}

# Pages of records: their titles, and the kinds of records that they hold.
PAGES = {
    "networks": (
        "Whole networks",
        (
            "network",
            "unets",
            "seams",
            "predictors",
            "nnunet",
            "sliding-windows",
            "models",
            "scaling",
            "gpu-networks",
        ),
    ),
    "layers": ("Single layers on CPUs", ("layer",)),
    "gpu-layers": ("Single layers on GPUs", ("gpu-layers", "gpu-chips")),
    "profiles": ("Layer by layer", ("profile",)),
    "top-plans": ("Best plans, predicted and measured", ("top-plans",)),
    "planner": (
        "Planner and memory",
        ("search", "search-compared", "micro-batches", "shares", "machine-plans"),
    ),
    "strategies": ("Host and GPU together", ("strategies", "gpu-memory")),
    "runs": (
        "Whole runs, input and output",
        (
            "end-to-end",
            "phases",
            "many-volumes",
            "default-memory",
            "volumes",
            "ledger",
            "kills",
            "killed-labels",
            "labels-memory",
            "handing-out",
            "cluster-scaling",
            "cluster-simulation",
        ),
    ),
}
PAGE_HEADER = """# {title}

These records come from `python -m bench`, with the machine, the date and the exact command.
Times are wall-clock medians, or times by the GPU's clock for layers of a GPU. `floor` is the
least time that the declared operations and bytes take at the measured ceilings. `achieved` is its
share of the measured time. Errors are relative to float64.
"""

PLACE = re.compile(r"\{\{ (table|record): ([\w.-]+) \}\}")


def with_tables(text: str, records: Records) -> str:
    """Return a page with ``{{ table: NAME }}`` and ``{{ record: FILE }}`` replaced by tables."""

    def made(place: re.Match[str]) -> str:
        kind, name = place.groups()
        if kind == "table":
            return TABLES[name](records)
        return f"{table(records[name].kind, records[name].rows)}\n\n{caption(records, [name])}"

    return PLACE.sub(made, text)


def record_pages(records: Records) -> dict[str, str]:
    """Return pages that hold all records, by their place on the site.

    Raises:
        RuntimeError: no page holds records of some kind.
    """
    known = {kind for _, kinds in PAGES.values() for kind in kinds}
    for name, record in records.items():
        if record.kind not in known:
            raise RuntimeError(f"{name} holds {record.kind!r}; give PAGES a page for it")
    pages = {}
    for page, (title, kinds) in PAGES.items():
        held = {name: record for name, record in records.items() if record.kind in kinds}
        sections = report(held).removeprefix(report({}))
        pages[f"performance/records/{page}.md"] = PAGE_HEADER.format(title=title) + sections
    return pages
