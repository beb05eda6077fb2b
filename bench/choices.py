"""Whether the planner's model picks the primitive that is fastest."""

from __future__ import annotations

from itertools import groupby

from bench.record import Row
from znni.core.options import ACCURACIES

ABOUT = ("kernel", "pool", "maps", "batch", "input", "threads")


def judge_choices(rows: list[Row]) -> list[Row]:
    """For each layer that was measured, the choice and the fastest."""
    by_layer = groupby(rows, key=lambda row: [row[name] for name in ABOUT])
    return [judge_choice(list(found)) for _, found in by_layer]


def judge_choice(rows: list[Row]) -> Row:
    """The primitive with the least predicted time beside the one with the least measured time.

    ``regret`` is the time lost by the choice, as a share of the fastest one's.

    Args:
        rows: a layer's, as ``compare_layer`` has them; those of peers and of primitives beyond
            float32's class are left out.
    """
    about = {name: rows[0][name] for name in ABOUT}
    ran = [row for row in rows if row.get("accuracy", 1) <= ACCURACIES["float32"]]
    if not ran:
        return {**about, "skipped": "no primitive ran"}
    picked = min(ran, key=lambda row: float(row["model_seconds"]))
    fastest = min(ran, key=lambda row: float(row["seconds"]))
    return {
        **about,
        "picked": picked["name"],
        "picked_seconds": picked["seconds"],
        "predicted_seconds": picked["model_seconds"],
        "fastest": fastest["name"],
        "fastest_seconds": fastest["seconds"],
        "fastest_predicted_seconds": fastest["model_seconds"],
        "regret": picked["seconds"] / fastest["seconds"] - 1,
        "of": len(ran),
    }
