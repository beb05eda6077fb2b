"""The choice of one step for each slot of a plan, under a memory limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter

from planner.overhead import LOCKED_BYTES_PER_TABLE_BYTE
from planner.pareto import GpuFronts
from znni.plans.segments import Step


def peak_bytes(step: Step, *, in_place: bool = False, copied_bytes: int = 0) -> int:
    """Return the peak bytes of one call of a step, with its input and output.

    Args:
        step: the step.
        in_place: whether its output already has its place, as for ``Step.taken``.
        copied_bytes: the bytes that it takes if it makes its output elsewhere and copies it.
    """
    return step.peak_bytes(in_place=in_place) + (0 if step.cost.writes_views else copied_bytes)


def all_on_gpu(resident: int, pieces: int, peak: int) -> int:
    """Return the GPU bytes of steps on the host, with the tables of their locked arrays.

    Args:
        resident: the GPU bytes that the steps keep.
        pieces: the most GPU bytes that a step works in; 0 if none computes there.
        peak: the host bytes of arrays and workspace, which are locked then.
    """
    return resident + pieces - (-peak // LOCKED_BYTES_PER_TABLE_BYTE) if pieces else 0


@dataclass(frozen=True)
class Slot:
    """The position of a step in a plan, with the steps that may fill it.

    Attributes:
        options: the steps to choose from, fastest first.
        runs: the number of runs for a patch, on average over a sweep.
        held: the bytes alive beside the step's own.
        in_place: whether the step's output already has its place among the held bytes.
        copied_bytes: the bytes that a step takes if it makes its output elsewhere and copies it.
        on_gpu: the GPU bytes that steps on the host may take together.
    """

    options: tuple[Step, ...]
    runs: float
    held: int
    in_place: bool = False
    copied_bytes: int = 0
    on_gpu: float = inf

    def peak(self, step: Step) -> int:
        """Return the most bytes alive while a step runs in this slot."""
        return self.held + peak_bytes(step, in_place=self.in_place, copied_bytes=self.copied_bytes)

    def peak_and_resident(self, step: Step) -> int:
        """Return the peak and the step's resident bytes together."""
        return self.peak(step) + step.cost.memory.resident

    def weighed(self, step: Step, byte_seconds: float) -> float:
        """Return the seconds of all runs, plus ``byte_seconds`` for each resident byte."""
        return self.runs * step.seconds + byte_seconds * step.cost.memory.resident

    def fitting(self, steps: Iterable[Step], allowed: float) -> Slot:
        """Return the slot with those of the steps that fit into the allowed bytes on their own."""
        return replace(
            self,
            options=tuple(
                step
                for step in steps
                if self.peak_and_resident(step) <= allowed
                and step.cost.memory.on_gpu <= self.on_gpu
            ),
        )


@dataclass(frozen=True)
class Choice:
    """One step for each of several slots, with their time and memory for one patch."""

    seconds: float
    resident: int
    peak: int
    steps: tuple[Step, ...]

    @property
    def on_gpu(self) -> int:
        """The GPU bytes that steps on the host take. Their pieces take turns."""
        return all_on_gpu(*bytes_on_gpu(self.steps), self.peak)


def bytes_on_gpu(steps: Iterable[Step]) -> tuple[int, int]:
    """Return the GPU bytes that steps on the host keep together, and the most that one works in."""
    resident = pieces = 0
    for step in steps:
        resident += step.cost.memory.gpu_resident
        pieces = max(pieces, step.cost.memory.gpu_working)
    return resident, pieces


def fastest_within(slots: Sequence[Slot], allowed: float, seconds_limit: float) -> Choice | None:
    """Return the fastest choice of ``undominated_within``, if there is one."""
    return next(iter(undominated_within(slots, allowed, seconds_limit)), None)


def undominated_within(
    slots: Sequence[Slot], allowed: float, seconds_limit: float, byte_seconds: float = 0.0
) -> list[Choice]:
    """Return all undominated choices whose resident bytes and peak fit together.

    The search is exact. It drops a partial choice for one of three reasons. Another choice is no
    worse in time and bytes; it cannot fit; or it cannot beat ``seconds_limit``. Every choice
    reaches the highest of the slots' least peaks, so lower peaks count as equal.

    Args:
        slots: the slots to fill.
        allowed: the bytes that resident memory and the peak may take together.
        seconds_limit: the seconds that a choice must beat.
        byte_seconds: the seconds that count for each resident byte against the limit.

    Returns:
        The choices left, fastest first.
    """
    least_rest, smallest_rest = [0.0], [0]
    for slot in reversed(slots):
        weighed = (slot.weighed(step, byte_seconds) for step in slot.options)
        least_rest.append(least_rest[-1] + min(weighed))
        resident_bytes = (step.cost.memory.resident for step in slot.options)
        smallest_rest.append(smallest_rest[-1] + min(resident_bytes))
    if least_rest[-1] >= seconds_limit:
        return []

    on_gpu = min((slot.on_gpu for slot in slots), default=inf)
    partial = [(Choice(0.0, 0, least_peak(slots), ()), (0, 0))]
    for index, slot in enumerate(slots):
        limit = seconds_limit - least_rest[-2 - index]
        room = allowed - smallest_rest[-2 - index]
        steps = [
            (
                slot.runs * step.seconds,
                step.cost.memory.resident,
                slot.peak(step),
                bytes_on_gpu([step]),
                step,
            )
            for step in slot.options
        ]
        grown = []
        for choice, (held, largest) in partial:
            for seconds, resident, peak, (more, pieces), step in steps:
                together = choice.seconds + seconds
                kept, most = choice.resident + resident, max(choice.peak, peak)
                if kept + most <= room and together + byte_seconds * kept < limit:
                    there = held + more, max(largest, pieces)
                    if all_on_gpu(*there, most) <= on_gpu:
                        grown.append((together, kept, most, there, choice, step))
        fronts = GpuFronts()
        partial = [
            (Choice(seconds, resident, peak, (*choice.steps, step)), there)
            for seconds, resident, peak, there, choice, step in sorted(
                grown, key=itemgetter(0, 1, 2, 3)
            )
            if fronts.admits(resident, peak, there)
        ]
    return [choice for choice, _ in partial]


def least_peak(slots: Sequence[Slot]) -> int:
    """Return the peak that every choice of steps reaches."""
    return max((min(map(slot.peak, slot.options)) for slot in slots), default=0)


def choice_of(slots: Sequence[Slot], steps: Sequence[Step]) -> Choice:
    """Return the choice of one step for each slot."""
    chosen = list(zip(slots, steps, strict=True))
    return Choice(
        sum(slot.runs * step.seconds for slot, step in chosen),
        sum(step.cost.memory.resident for step in steps),
        max((slot.peak(step) for slot, step in chosen), default=0),
        tuple(steps),
    )


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
            memories = [(s.cost.memory.resident, s.cost.memory.on_gpu) for s in fitting]
            steps.append(fitting[memories.index(min(memories))])
        else:
            choice = choice_of(slots, steps)
            if best is None or choice.resident + peak < best.resident + best.peak:
                best = replace(choice, peak=peak)
    if best is None:
        raise ValueError("a slot without options has no least memory")
    return best
