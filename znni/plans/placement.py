"""Places: where each value of a plan lies in a device's arena, and what is free for workspace.

The places follow from a plan's steps alone, before anything runs. A stack grows from each end of
the arena. A step's output goes on the other stack than its input. Values of nested segments and
of skips end in the reverse order of their beginning. So they leave no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from znni.core.shapes import round_up
from znni.plans.segments import Segment, Step


class StepPlace(NamedTuple):
    """The memory that one step uses in an arena, in bytes from the arena's beginning.

    Attributes:
        output: the beginning of the output; None if it lies in the tensor that is handed on.
        free: the beginning and the end of the memory for output and workspace. The output lies at
            one of these two ends. Workspace may lie there too before the output is made.
    """

    output: int | None
    free: tuple[int, int]


@dataclass(frozen=True)
class Placement:
    """The places of all steps of one device's part of a plan.

    Attributes:
        size: the bytes of the arena.
        places: the places of the steps of each segment.
    """

    size: int
    places: tuple[tuple[StepPlace, ...], ...]


@dataclass
class _Value:
    """A value on one of the two stacks.

    Attributes:
        name: the name of the value.
        stop: the bytes of its stack up to its end.
        alive: whether a later step still takes it.
    """

    name: str
    stop: int
    alive: bool = True


class _Taken(NamedTuple):
    """The memory that one step finds taken, and the end where its output goes.

    Attributes:
        low: the bytes taken from the beginning of the arena.
        high: the bytes taken from its end.
        at_high_end: whether the output goes to its end; None if it lies elsewhere.
        nbytes: the bytes of the output.
    """

    low: int
    high: int
    at_high_end: bool | None
    nbytes: int


def placement(
    segments: tuple[Segment, ...], alignment: int = 1, spare: int = 0, *, hands_on: bool = False
) -> Placement:
    """Return places for all values that the steps of a device's segments make.

    The input of the first segment has no place: it lies outside the arena.

    Args:
        segments: the segments, first to last.
        alignment: the bytes of which every array's beginning is a multiple.
        spare: bytes of each step beside its workspace, for the alignment of the arrays in it.
        hands_on: whether the last output lies in a tensor that is handed on.
    """
    stacks: tuple[list[_Value], list[_Value]] = ([], [])
    ends: dict[str, bool] = {}
    found: list[list[_Taken]] = []
    size = 0
    for index, segment in enumerate(segments):
        found.append([])
        last = index + 1 == len(segments)
        for step, dying in zip(segment.steps, segment.dying, strict=True):
            in_place = hands_on and last and step is segment.steps[-1]
            taken = _placed(step, in_place, stacks, ends, alignment)
            found[-1].append(taken)
            beside = _beside_output(step, in_place=taken.at_high_end is None)
            needed = taken.nbytes + round_up(beside, alignment) + spare
            size = max(size, taken.low + taken.high + needed)
            _free(stacks, dying)
        if last:
            _free(stacks, (segment.steps[-1].gives,))
    return Placement(size, tuple(tuple(_place(it, size) for it in steps) for steps in found))


def _placed(
    step: Step,
    in_place: bool,
    stacks: tuple[list[_Value], list[_Value]],
    ends: dict[str, bool],
    alignment: int,
) -> _Taken:
    """Put a step's output on a stack, and return the memory that the step finds taken."""
    low, high = (stack[-1].stop if stack else 0 for stack in stacks)
    if in_place:
        return _Taken(low, high, None, 0)
    at_high_end = not ends.get(step.takes[-1], True)
    ends[step.gives] = at_high_end
    nbytes = round_up(step.shape_out.nbytes, alignment)
    stacks[at_high_end].append(_Value(step.gives, (high if at_high_end else low) + nbytes))
    return _Taken(low, high, at_high_end, nbytes)


def _beside_output(step: Step, *, in_place: bool) -> int:
    """Return the bytes that a step takes beside its input and output.

    A primitive may make its output late, when some of its workspace is free again.
    """
    memory = step.cost.memory
    if in_place:
        return memory.workspace
    return max(0, memory.working - step.shape_in.nbytes - step.shape_out.nbytes)


def _place(taken: _Taken, size: int) -> StepPlace:
    """Return a step's place in an arena of ``size`` bytes."""
    free = taken.low, size - taken.high
    if taken.at_high_end is None:
        return StepPlace(None, free)
    return StepPlace(free[1] - taken.nbytes if taken.at_high_end else free[0], free)


def _free(stacks: tuple[list[_Value], list[_Value]], names: tuple[str, ...]) -> None:
    """Take ended values off their stacks, as soon as all values on top of them have ended too."""
    for stack in stacks:
        for value in stack:
            value.alive = value.alive and value.name not in names
        while stack and not stack[-1].alive:
            stack.pop()
