"""Tables in the documents, and pages of records, from the records in ``bench/results``.

``python docs/generators/performance.py`` writes them all. A test says which are out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for bench, which is not installed

from memory_tables import MEMORY_TABLES
from paper_tables import PAPER_TABLES
from performance_tables import TABLES
from performance_tables.parts import Records, caption

from bench.record import load
from bench.report import report
from bench.table import markdown, table

ROOT = Path(__file__).parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "bench" / "results"
PAGES_OF_RECORDS = DOCS / "performance" / "records"
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
            "cases",
            "whole-scan",
            "sliding-windows",
            "models",
            "gpu-models",
            "import-families",
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
        ("search", "search-compared", "micro-batches", "shares", "machine-plans", "sweeps"),
    ),
    "strategies": ("Host and GPU together", ("strategies", "borders", "gpu-memory")),
    "papers": ("Figures of papers", ("evaluations", "engine-curves")),
    "runs": (
        "Whole runs, input and output",
        (
            "end-to-end",
            "phases",
            "many-volumes",
            "case-folder",
            "default-memory",
            "volumes",
            "zarr-libraries",
            "resampling",
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
RESULTS_HEADER = """# Results

Each file here is the record of a command: its rows, with the machine, the revision and the date.
These pages have the records as tables. `python docs/generators/performance.py` writes them.

"""

# The place of a table, which lies between two comments.
PLACE = re.compile(r"(<!-- (table|record): ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages(records: Records) -> dict[Path, str]:
    """Return the text of each file that has tables of records."""
    documents = [it for it in DOCS.rglob("*.md") if it.parent != PAGES_OF_RECORDS]
    told = {it: it.read_text(encoding="utf-8") for it in documents}
    return {it: with_tables(text, records) for it, text in told.items()} | record_pages(records)


def with_tables(text: str, records: Records) -> str:
    """Return a text with the tables of today's records between its comments."""

    def made(place: re.Match[str]) -> str:
        begin, kind, name, end = place.groups()
        if kind == "table":
            found = (TABLES | MEMORY_TABLES | PAPER_TABLES)[name](records)
        else:
            rows = table(records[name].kind, records[name].rows)
            found = f"{rows}\n\n{caption(records, [name])}"
        return f"{begin}\n{found}\n\n{end}"

    return PLACE.sub(made, text)


def record_pages(records: Records) -> dict[Path, str]:
    """Return pages that hold all records, and one that lists these pages.

    Raises:
        RuntimeError: no page holds records of some kind.
    """
    known = {kind for _, kinds in PAGES.values() for kind in kinds}
    for name, record in records.items():
        if record.kind not in known:
            raise RuntimeError(f"{name} holds {record.kind!r}; give PAGES a page for it")
    found, lines = {}, []
    for page, (title, kinds) in PAGES.items():
        held = {name: record for name, record in records.items() if record.kind in kinds}
        path = PAGES_OF_RECORDS / f"{page}.md"
        found[path] = report(held, title)
        link = f"[{title}](../../{path.relative_to(ROOT).as_posix()})"
        lines.append({"page": link, "records": ", ".join(f"`{name}`" for name in held)})
    return found | {RESULTS / "README.md": f"{RESULTS_HEADER}{markdown(lines)}\n"}


if __name__ == "__main__":
    for file, text in pages(RECORDS).items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
