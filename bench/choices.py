"""Whether the planner's model picks the primitive that is fastest."""

from __future__ import annotations

from typing import Any

from bench.ceilings import Ceilings
from bench.layers import Effort, compare_layer
from znni.machine import Machine
from znni.network import Conv
from znni.shapes import Shape5

Row = dict[str, Any]


def judge_choice(
    machine: Machine,
    conv: Conv,
    shape: Shape5,
    only: list[str],
    effort: Effort,
    ceilings: Ceilings,
) -> Row:
    """The primitive with the least predicted time beside the one with the least measured time.

    ``regret`` is the time lost by the choice, as a share of the fastest one's. All measurements
    are kept under ``measured``.
    """
    rows = compare_layer(
        machine, conv, shape, only, effort, ceilings, peers=False, accuracy="float32"
    )
    ran = [row for row in rows if "seconds" in row]
    about = {key: rows[0][key] for key in ("kernel", "maps", "batch", "input", "threads")}
    if not ran:
        return {**about, "skipped": "no primitive ran", "measured": rows}
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
        "measured": rows,
    }
