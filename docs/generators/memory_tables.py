"""Tables on memory, from the records of ``bench``."""

from __future__ import annotations

from collections.abc import Callable

from performance_tables.parts import Records, caption

from bench.record import Row
from bench.table import markdown

# Batches in pieces: within limits of workspace alone, and of workspace and what is kept.
PIECES = "micro-batches-all-primitives.json"
PIECES_WITH_RESIDENT = "micro-batches-with-resident.json"


def pieces(records: Records) -> str:
    """Return what pieces gain within a limit, and what each way keeps between calls."""
    lines = []
    of_both = _by_division(records[PIECES_WITH_RESIDENT].rows)
    for key, found in _by_division(records[PIECES].rows).items():
        kernel, limit = key
        lines.append(
            {
                "kernel": kernel,
                "limit": f"{limit:.0f} MiB",
                "limit on workspace": _gain(found),
                "kept, in pieces": _kept(found["power-of-two"]),
                "kept, whole": _kept(found["none"]),
                "limit on both": _gain(of_both[key]),
                "kept then, in pieces": _kept(of_both[key]["power-of-two"]),
            }
        )
    return f"{markdown(lines)}\n\n{caption(records, (PIECES, PIECES_WITH_RESIDENT))}"


def _by_division(rows: list[Row]) -> dict[tuple[str, float], dict[str, Row]]:
    """Return rows by kernel and limit, and then by the sizes of pieces."""
    found: dict[tuple[str, float], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["kernel"], row["limit_mib"]), {})[row["division"]] = row
    return found


def _gain(found: dict[str, Row]) -> str:
    gain = found["power-of-two"]["gain"]
    return f"{gain:.0f}x" if gain >= 10 else f"{gain:.1f}x"


def _kept(row: Row) -> str:
    return f"{row['resident_mib']:.0f} MiB"


MEMORY_TABLES: dict[str, Callable[[Records], str]] = {"pieces": pieces}
