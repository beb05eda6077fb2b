"""Why a plan has the primitives that it has, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.alternatives import Alternative
from znni.segments import Step
from znni.text_table import aligned
from znni.units import in_units

# Alternatives shown for a step.
MOST = 4


def explanation(steps: Iterable[tuple[Step, int, Sequence[Alternative]]]) -> str:
    """Each step of a plan beside its fastest alternatives, what they take and whether that fits.

    Args:
        steps: each with how often it runs for a patch, and its alternatives, fastest first.
    """
    rows: list[tuple[str, ...]] = []
    for step, runs, others in steps:
        rows.append((step.operation.name, step.primitive, f"{runs * step.seconds:.3f} s", "chosen"))
        rows.extend(_row(step, runs, other) for other in others[:MOST])
    figures = aligned([row[:3] for row in rows], left=2)
    return "\n".join(f"{line}  {row[3]}" for line, row in zip(figures, rows, strict=True))


def _row(step: Step, runs: int, other: Alternative) -> tuple[str, ...]:
    seconds = runs * other.step.seconds
    times = f"{other.step.seconds / step.seconds:.2f}x the time"
    if other.memory > other.allowed:
        times += f", and {in_units(other.memory)} of {in_units(other.allowed)}"
    return "", other.step.primitive, f"{seconds:.3f} s", times
