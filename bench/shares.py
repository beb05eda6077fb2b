"""Simpler ways than the planner's to give out the memory that layers hold at the same time.

Each layer is at its fastest within its share, in pieces or whole: workspace reuse (Oyama et al.,
2018). They take what ``planner.choices.undominated_within`` takes, which decides for all layers
jointly: workspace division.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.choices import Choice, Slot
from planner.pareto import Front
from znni.plans.segments import Step

Pairs = list[tuple[int, int]]


def equal_share(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> list[Choice]:
    """The same for every layer: the largest bound on resident memory and workspace that fits."""
    bounds = {_beside_arrays(step) for slot in slots for step in slot.options}
    for bound in sorted(bounds, reverse=True):
        steps = [next((s for s in it.options if _beside_arrays(s) <= bound), None) for it in slots]
        chosen = [step for step in steps if step]
        if len(chosen) < len(slots):
            return []
        choice = _together(slots, chosen)
        if choice.resident + choice.peak <= allowed:
            return [choice] if choice.seconds < seconds_limit else []
    return []


def first_come(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> list[Choice]:
    """Each layer in turn takes its fastest step that leaves the later ones enough."""
    needs = _least_needs(slots)
    chosen: list[Step] = []
    resident = peak = 0
    for slot, later in zip(slots, needs[1:], strict=True):
        for step in slot.options:
            held, highest = resident + step.cost.memory.resident, max(peak, slot.peak(step))
            if any(held + more + max(highest, other) <= allowed for more, other in later):
                chosen.append(step)
                resident, peak = held, highest
                break
        else:
            return []
    choice = _together(slots, chosen)
    return [choice] if choice.seconds < seconds_limit else []


def _beside_arrays(step: Step) -> int:
    return step.cost.memory.resident + step.cost.memory.workspace


def _together(slots: Sequence[Slot], steps: Sequence[Step]) -> Choice:
    return Choice(
        sum(slot.runs * step.seconds for slot, step in zip(slots, steps, strict=True)),
        sum(step.cost.memory.resident for step in steps),
        max(slot.peak(s) for slot, s in zip(slots, steps, strict=True)),
        tuple(steps),
    )


def _least_needs(slots: Sequence[Slot]) -> list[Pairs]:
    """For the slots from each on, and for none: all least pairs of resident bytes and peak."""
    needs: list[Pairs] = [[(0, 0)]]
    for slot in reversed(slots):
        pairs = sorted(
            (more + s.cost.memory.resident, max(other, slot.peak(s)))
            for s in slot.options
            for more, other in needs[0]
        )
        front = Front()
        needs.insert(0, [pair for pair in pairs if front.admits(*pair)])
    return needs
