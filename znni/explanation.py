"""Why a plan has the primitives that it has, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.alternatives import Alternative
from znni.plans import Plan, Step
from znni.text_table import aligned
from znni.units import in_units

# Alternatives shown for a step.
MOST = 4


def explanation(plan: Plan, steps: Iterable[tuple[Step, int, Sequence[Alternative]]]) -> str:
    """Each step beside its fastest alternatives, with what they would take and whether that fits.

    Args:
        plan: what is explained.
        steps: each with how often it runs for a patch, and its alternatives, fastest first.
    """
    rows: list[tuple[str, ...]] = []
    for step, runs, others in steps:
        rows.append((step.operation.name, step.primitive, f"{runs * step.seconds:.3f} s", "chosen"))
        rows.extend(_row(plan, step, runs, other) for other in others[:MOST])
    figures = aligned([row[:3] for row in rows], left=2)
    return "\n".join(f"{line}  {row[3]}" for line, row in zip(figures, rows, strict=True))


def _row(plan: Plan, step: Step, runs: int, other: Alternative) -> tuple[str, ...]:
    seconds = runs * other.step.seconds
    times = f"{other.step.seconds / step.seconds:.2f}x the time"
    allowed = plan.device.memory
    if other.memory > allowed:
        times += f", and {in_units(other.memory)} of {in_units(allowed)}"
    return "", other.step.primitive, f"{seconds:.3f} s", times
