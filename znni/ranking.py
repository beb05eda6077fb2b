"""The fastest plans side by side, as text."""

from __future__ import annotations

from collections.abc import Sequence

from znni.plans import Plan
from znni.text_table import GAP, aligned
from znni.units import in_units

HEADER = ("rank", "patch", "patches", "voxels/s", "+-", "of best", "memory", "wasted")

# Differences from the best that are told of a plan.
MOST = 3


def ranking(plans: Sequence[Plan]) -> str:
    """A line for each plan, and how it differs from the first.

    Args:
        plans: of one network and output, fastest first.
    """
    best = plans[0]
    rows = [HEADER, *(_row(rank, plan, best) for rank, plan in enumerate(plans, start=1))]
    remarks = ["how", "as above", *(_difference(plan, best) for plan in plans[1:])]
    lines = zip(aligned(rows, left=2), remarks, strict=True)
    return "\n".join(f"{figures}{GAP}{remark}" for figures, remark in lines)


def _row(rank: int, plan: Plan, best: Plan) -> tuple[str, ...]:
    return (
        f"{rank}",
        str(plan.patch),
        f"{plan.patches:,}",
        f"{plan.voxels_per_second:,.0f}",
        f"{plan.error:.0%}",
        f"{best.seconds / plan.seconds:.1%}",
        in_units(plan.device_memory.total),
        f"{plan.wasted_work:.0%}",
    )


def _difference(plan: Plan, best: Plan) -> str:
    """What a plan computes otherwise than the best: its first layers, those alike together."""
    usual = _ways(best)
    layers: dict[str, list[str]] = {}
    for layer, way in _ways(plan).items():
        if usual.get(layer) != way:
            layers.setdefault(way, []).append(layer)
    told = [f"{way} in {', '.join(names)}" for way, names in layers.items()]
    more = len(told) - MOST
    return "; ".join(told[:MOST]) + f"; {more} more" * (more > 0) or "the same in other patches"


def _ways(plan: Plan) -> dict[str, str]:
    """How each operation is done: by what, and where a segment starts, for how many at a time."""
    ways = {}
    for segment in plan.segments:
        for step in segment.steps:
            starts = step is segment.steps[0] and segment is not plan.segments[0]
            some = f", {segment.sub_batch} at a time," * starts
            ways[step.operation.name] = f"{step.primitive}{some}"
    return ways
