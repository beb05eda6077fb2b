"""Places: where each value of a plan lies in a device's arena, and what is free for workspace.

The places follow from a plan's steps alone, before anything runs. A stack grows from each end of
the arena. A step's output goes on the other stack than its input. Values of nested segments and
of skips end in the reverse order of their beginning. So they leave no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from znni.plans.segments import Segment, Step


class StepPlace(NamedTuple):
    """The memory that one step uses in an arena, in bytes from the arena's beginning.

    Attributes:
        output: the beginning of the output; None if it lies in the tensor that is handed on.
        free: the beginning and the end of the memory that is free for workspace.
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
    """The memory taken while one step runs: the bytes at both ends, and the place of its output."""

    low: int
    high: int
    output: int | None
    at_high_end: bool
    nbytes: int


def placement(
    segments: tuple[Segment, ...], alignment: int = 1, *, hands_on: bool = False
) -> Placement:
    """Return places for all values that the steps of a device's segments make.

    The input of the first segment has no place: it lies outside the arena.

    Args:
        segments: the segments, first to last.
        alignment: the bytes of which every array's beginning is a multiple.
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
            workspace = _aligned(step.cost.memory.workspace, alignment)
            size = max(size, taken.low + taken.high + workspace)
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
    """Put a step's output on a stack, and return the memory taken while the step runs."""
    output, at_high_end, nbytes = None, False, 0
    if not in_place:
        at_high_end = not ends.get(step.takes[-1], True)
        ends[step.gives] = at_high_end
        stack = stacks[at_high_end]
        output = stack[-1].stop if stack else 0
        nbytes = _aligned(step.shape_out.nbytes, alignment)
        stack.append(_Value(step.gives, output + nbytes))
    low, high = (stack[-1].stop if stack else 0 for stack in stacks)
    return _Taken(low, high, output, at_high_end, nbytes)


def _place(taken: _Taken, size: int) -> StepPlace:
    """Return a step's place in an arena of ``size`` bytes."""
    output = taken.output
    if output is not None and taken.at_high_end:
        output = size - output - taken.nbytes
    return StepPlace(output, (taken.low, size - taken.high))


def _free(stacks: tuple[list[_Value], list[_Value]], names: tuple[str, ...]) -> None:
    """Take ended values off their stacks, as soon as all values on top of them have ended too."""
    for stack in stacks:
        for value in stack:
            value.alive = value.alive and value.name not in names
        while stack and not stack[-1].alive:
            stack.pop()


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
