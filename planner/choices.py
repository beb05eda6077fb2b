"""The choice of one step for each slot of a plan, under a memory limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from planner.pareto import Front
from znni.plans.segments import Step


@dataclass(frozen=True)
class Slot:
    """The position of a step in a plan, with the steps that may fill it.

    Attributes:
        options: the steps to choose from, fastest first.
        runs: the number of runs for a patch.
        held: the bytes alive beside the step's own.
        in_place: whether the step's output already has its place among the held bytes.
    """

    options: tuple[Step, ...]
    runs: int
    held: int
    in_place: bool = False

    def peak(self, step: Step) -> int:
        """Return the most bytes alive while a step runs in this slot."""
        return self.held + step.taken(in_place=self.in_place)

    def kept(self, step: Step) -> int:
        """Return the peak and the step's resident bytes together."""
        return self.peak(step) + step.cost.memory.resident

    def fitting(self, steps: Iterable[Step], allowed: float) -> Slot:
        """Return the slot with those of the steps that fit into the allowed bytes on their own."""
        return replace(
            self,
            options=tuple(step for step in steps if self.kept(step) <= allowed),
        )


@dataclass(frozen=True)
class Choice:
    """One step for each of several slots, with their time and memory for one patch."""

    seconds: float
    resident: int
    peak: int
    steps: tuple[Step, ...]


def fastest_within(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> Choice | None:
    """Return the fastest choice of ``undominated_within``, if there is one."""
    return next(iter(undominated_within(slots, allowed, seconds_limit)), None)


def undominated_within(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> list[Choice]:
    """Return all undominated choices whose resident bytes and peak fit together.

    The search is exact. It drops a partial choice for one of three reasons. Another choice is no
    worse in time, resident bytes and peak; it cannot fit; or it cannot beat ``seconds_limit``.

    Args:
        slots: the slots to fill.
        allowed: the bytes that resident memory and the peak may take together.
        seconds_limit: the seconds that a choice must beat.

    Returns:
        The choices left, fastest first.
    """
    fastest_rest = [0.0]
    for slot in reversed(slots):
        fastest_rest.append(fastest_rest[-1] + slot.runs * slot.options[0].seconds)
    fastest_rest.reverse()
    if fastest_rest[0] >= seconds_limit:
        return []

    partial = [Choice(0.0, 0, 0, ())]
    for index, slot in enumerate(slots):
        steps = [
            (slot.runs * step.seconds, step.cost.memory.resident, slot.peak(step), step)
            for step in slot.options
        ]
        grown = []
        for choice in partial:
            for seconds, resident, peak, step in steps:
                together = choice.seconds + seconds
                kept, most = choice.resident + resident, max(choice.peak, peak)
                if kept + most <= allowed and together + fastest_rest[index + 1] < seconds_limit:
                    grown.append((together, kept, most, choice, step))
        front = Front()
        partial = [
            Choice(seconds, resident, peak, (*choice.steps, step))
            for seconds, resident, peak, choice, step in sorted(grown, key=itemgetter(0, 1, 2))
            if front.admits(resident, peak)
        ]
    return partial


def least_memory(slots: Sequence[Slot]) -> Choice:
    """Return the choice with the least resident bytes and peak together, whatever its time."""
    bounds = sorted({slot.peak(step) for slot in slots for step in slot.options})
    best: Choice | None = None
    for peak in bounds:
        steps = []
        for slot in slots:
            fitting = [s for s in slot.options if slot.peak(s) <= peak]
            if not fitting:
                break
            steps.append(min(fitting, key=lambda s: s.cost.memory.resident))
        else:
            resident = sum(s.cost.memory.resident for s in steps)
            if best is None or resident + peak < best.resident + best.peak:
                seconds = sum(slot.runs * s.seconds for slot, s in zip(slots, steps, strict=True))
                best = Choice(seconds, resident, peak, tuple(steps))
    if best is None:
        raise ValueError("a slot without options has no least memory")
    return best
