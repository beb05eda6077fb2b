"""One step for each place in a plan: the best choices under a memory limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from planner.pareto import Front
from znni.plans.segments import Step


@dataclass(frozen=True)
class Slot:
    """A step's place in a plan.

    Attributes:
        options: steps to choose from.
        runs: how often the chosen one runs for a patch.
        held: bytes alive beside what the step itself takes.
        in_place: its output has its place among them already.
    """

    options: tuple[Step, ...]
    runs: int
    held: int
    in_place: bool = False

    def peak(self, step: Step) -> int:
        """Bytes alive at the most while a step is run here."""
        return self.held + step.taken(in_place=self.in_place)

    def kept(self, step: Step) -> int:
        """These, and what it keeps between patches."""
        return self.peak(step) + step.cost.memory.resident

    def fitting(self, steps: Iterable[Step], allowed: float) -> Slot:
        """With those as options that fit into so many bytes alone."""
        return replace(
            self,
            options=tuple(step for step in steps if self.kept(step) <= allowed),
        )


@dataclass(frozen=True)
class Choice:
    """Steps for a run of slots, and what they take together for one patch."""

    seconds: float
    resident: int
    peak: int
    steps: tuple[Step, ...]


def fastest_within(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> Choice | None:
    """The fastest of ``undominated_within``."""
    return next(iter(undominated_within(slots, allowed, seconds_limit)), None)


def undominated_within(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> list[Choice]:
    """One step per slot: all choices whose resident bytes and highest working bytes fit together.

    Exact: partial choices are dropped only when another is no worse in time, resident bytes and
    peak, or when they cannot fit, or cannot beat ``seconds_limit``.

    Returns:
        Those left, the fastest first.
    """
    fastest_rest = [0.0]
    for slot in reversed(slots):
        fastest_rest.append(fastest_rest[-1] + slot.runs * slot.options[0].seconds)
    fastest_rest.reverse()
    if fastest_rest[0] >= seconds_limit:
        return []

    partial = [Choice(0.0, 0, 0, ())]
    for index, slot in enumerate(slots):
        grown = []
        for choice in partial:
            for step in slot.options:
                seconds = choice.seconds + slot.runs * step.seconds
                resident = choice.resident + step.cost.memory.resident
                peak = max(choice.peak, slot.peak(step))
                if resident + peak <= allowed and seconds + fastest_rest[index + 1] < seconds_limit:
                    grown.append(Choice(seconds, resident, peak, (*choice.steps, step)))
        partial = _undominated(grown)
    return partial


def _undominated(choices: list[Choice]) -> list[Choice]:
    front = Front()
    by_time = sorted(choices, key=lambda c: (c.seconds, c.resident, c.peak))
    return [choice for choice in by_time if front.admits(choice.resident, choice.peak)]


def least_memory(slots: Sequence[Slot]) -> Choice:
    """One step per slot: the smallest peak, whatever the time."""
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
