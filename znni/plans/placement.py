"""Where each value of a plan lies in a device's arena, and what is free for a step's workspace.

Places are decided from a plan's steps alone, before anything runs. A stack grows from each end of
the arena. A step's output goes on the other stack than its input, so that values which end in the
reverse order of their beginning, as those of nested segments and of skips do, leave no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from znni.plans.device_partition import DevicePart
from znni.plans.segments import Step


class StepPlace(NamedTuple):
    """The memory that one step uses of an arena, in bytes from its beginning.

    Attributes:
        output: where the output begins; None if it lies in the tensor that is handed on.
        free: the beginning and the end of what is free for workspace.
    """

    output: int | None
    free: tuple[int, int]


@dataclass(frozen=True)
class Placement:
    """Places for all steps of one device's part of a plan.

    Attributes:
        size: bytes of the arena.
        places: for each segment, the places of its steps.
    """

    size: int
    places: tuple[tuple[StepPlace, ...], ...]


@dataclass
class _Value:
    """A value on one of the two stacks.

    Attributes:
        name: the value's.
        stop: bytes of its stack up to its end.
        alive: whether a step still takes it.
    """

    name: str
    stop: int
    alive: bool = True


class _Taken(NamedTuple):
    """What one step finds taken: bytes at both ends, its output, and the stack of that."""

    low: int
    high: int
    output: int | None
    at_high_end: bool
    nbytes: int


def placement(part: DevicePart, alignment: int = 1) -> Placement:
    """Place all values that the steps of a part make.

    The input of the first segment is not among them: it lies elsewhere.

    Args:
        part: the steps.
        alignment: bytes that every array begins at a multiple of.
    """
    stacks: tuple[list[_Value], list[_Value]] = ([], [])
    ends: dict[str, bool] = {}
    found: list[list[_Taken]] = []
    size = 0
    for index, segment in enumerate(part.segments):
        found.append([])
        last = index + 1 == len(part.segments)
        for step, dying in zip(segment.steps, segment.dying, strict=True):
            taken = _placed(part, step, stacks, ends, alignment)
            found[-1].append(taken)
            workspace = _aligned(step.cost.memory.workspace, alignment)
            size = max(size, taken.low + taken.high + workspace)
            _free(stacks, dying)
        if last:
            _free(stacks, (segment.steps[-1].gives,))
    return Placement(size, tuple(tuple(_place(it, size) for it in steps) for steps in found))


def _placed(
    part: DevicePart,
    step: Step,
    stacks: tuple[list[_Value], list[_Value]],
    ends: dict[str, bool],
    alignment: int,
) -> _Taken:
    """Put a step's output on a stack, and return what is taken while it runs."""
    output, at_high_end, nbytes = None, False, 0
    if not part.writes_in_place(step):
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
    """Take values off their stacks, once all that lies on top of them has ended too."""
    for stack in stacks:
        for value in stack:
            value.alive = value.alive and value.name not in names
        while stack and not stack[-1].alive:
            stack.pop()


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
