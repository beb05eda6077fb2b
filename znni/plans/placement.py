"""Placement: where each array lies in an arena, and what is left for workspace.

The places follow from the operations alone, before anything runs. An array lives from the first
operation that writes it to the last one that reads it. Two rules place the arrays, and the one that
needs fewer bytes counts:

- **two stacks**: a stack grows from each end of the arena, and an output goes on the other stack
  than its input. Arrays whose lives nest, as in a chain or in nested loops, leave no gaps.
- **largest first**: each array lies as low as its life allows, as in the memory planning of
  interpreters for networks. Graphs with joins need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Life(NamedTuple):
    """The operations during which an array is in use, both included."""

    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """Return whether both are in use at the same time."""
        return self.first <= other.last and other.first <= self.last


class Use(NamedTuple):
    """The memory that one operation uses.

    Attributes:
        reads: the names of the arrays that it reads.
        writes: the name of the array that it writes.
        workspace: the bytes that it takes beside them.
        late: whether the output begins to exist only late in the call. Until then, workspace may
            use the output's place, at one end of the workspace.
    """

    reads: tuple[str, ...]
    writes: str
    workspace: int
    late: bool = False


@dataclass(frozen=True)
class Placement:
    """The places of all arrays in an arena.

    Attributes:
        size: the bytes of the arena.
        starts: the first byte of each array, by name.
        room: the beginning and the end of each operation's workspace. If the operation makes its
            output late, the output lies at one of these two ends.
    """

    size: int
    starts: Mapping[str, int]
    room: tuple[tuple[int, int], ...]


class ArrayUses(NamedTuple):
    """The arrays of a program, and how its operations use them.

    Attributes:
        sizes: the bytes of each array in the arena, by name. Others lie elsewhere.
        uses: the operations in order.
        to_the_end: the arrays that live until the last operation ends: the output, and those that
            a loop reads again each time.
    """

    sizes: Mapping[str, int]
    uses: Sequence[Use]
    to_the_end: frozenset[str] = frozenset()

    def lives(self) -> dict[str, Life]:
        """Return the life of each array in the arena, by name."""
        lives: dict[str, Life] = {}
        for index, use in enumerate(self.uses):
            for name in (use.writes, *use.reads):
                lives[name] = Life(lives[name].first if name in lives else index, index)
        for name in self.to_the_end & lives.keys():
            lives[name] = lives[name]._replace(last=len(self.uses))
        return {name: life for name, life in lives.items() if name in self.sizes}

    def alive(self) -> Iterator[int]:
        """Yield the bytes of the arrays that are alive during each operation."""
        lives = self.lives()
        for index in range(len(self.uses)):
            yield sum(
                nbytes
                for name, nbytes in self.sizes.items()
                if lives[name].first <= index <= lives[name].last
            )

    def placement(self) -> Placement:
        """Return places for all arrays, and for the workspace of each operation."""
        stacked = _on_two_stacks(self)
        if any(use.late for use in self.uses):
            return stacked
        bound = max(
            alive + use.workspace for alive, use in zip(self.alive(), self.uses, strict=True)
        )
        if stacked.size == bound:
            return stacked
        return min(_largest_first(self), stacked, key=lambda placement: placement.size)


def _on_two_stacks(arrays: ArrayUses) -> Placement:
    """Place each output on the other stack than the operation's last input."""
    lives = arrays.lives()
    stacks: tuple[list[tuple[str, int]], list[tuple[str, int]]] = ([], [])
    high_ends: dict[str, int] = {}
    starts: dict[str, int] = {}
    taken: list[tuple[int, int]] = []  # at both ends, beside each operation's workspace
    size = 0
    for index, use in enumerate(arrays.uses):
        low, high = (stack[-1][1] if stack else 0 for stack in stacks)
        before = low, high
        if use.writes in lives and lives[use.writes].first == index:
            nbytes = arrays.sizes[use.writes]
            if use.reads[-1] not in starts:  # it is at the high end, or outside the arena
                starts[use.writes] = low
                low += nbytes
                stacks[0].append((use.writes, low))
            else:
                high += nbytes
                high_ends[use.writes] = high
                stacks[1].append((use.writes, high))
        taken.append(before if use.late else (low, high))
        size = max(size, low + high + use.workspace)
        for stack in stacks:
            while stack and lives[stack[-1][0]].last <= index:
                stack.pop()
    starts |= {name: size - stop for name, stop in high_ends.items()}
    return Placement(size, starts, tuple((low, size - high) for low, high in taken))


class _Piece(NamedTuple):
    """Memory to be placed.

    Attributes:
        nbytes: its bytes.
        life: the operations during which it is in use.
        name: the array's name, or the number of the operation that it is workspace for.
    """

    nbytes: int
    life: Life
    name: str | int


def _largest_first(arrays: ArrayUses) -> Placement:
    """Place the largest arrays first, each as low as its life allows."""
    lives = arrays.lives()
    pieces = [_Piece(arrays.sizes[name], life, name) for name, life in lives.items()]
    pieces += [
        _Piece(use.workspace, Life(index, index), index) for index, use in enumerate(arrays.uses)
    ]
    placed: list[tuple[int, _Piece]] = []
    for piece in sorted(pieces, key=lambda it: (-it.nbytes, it.life)):
        start = 0
        for low, other in sorted(placed, key=lambda it: it[0]):
            overlaps = low < start + piece.nbytes and start < low + other.nbytes
            if overlaps and piece.life.meets(other.life):
                start = low + other.nbytes
        placed.append((start, piece))
    size = max(start + piece.nbytes for start, piece in placed)
    at = {piece.name: (start, start + piece.nbytes) for start, piece in placed}
    return Placement(
        size,
        {name: at[name][0] for name in lives},
        tuple(at[index] for index in range(len(arrays.uses))),
    )
