"""Shares of the blocks of a run, for several processes that compute at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from threading import Lock
from typing import Generic, TypeVar

Taker = TypeVar("Taker", bound=Hashable)
Item = TypeVar("Item")


class Shares(Generic[Taker, Item]):
    """Hands out blocks so that those of a column go to one taker, in order.

    A taker without blocks gets the next column. If all columns are begun, it gets the last half of
    the blocks that another taker still has, whoever has most. So all end at about the same time.

    Args:
        columns: the blocks of each column. In a plan that does not sweep, each block is a column.
    """

    def __init__(self, columns: Iterable[Sequence[Item]]) -> None:
        self._columns = iter(columns)
        self._left: deque[Sequence[Item]] = deque()  # columns of takers that are gone
        self._shares: dict[Taker, deque[Item]] = {}
        self._taking = Lock()

    def next_for(self, taker: Taker) -> Item | None:
        """Return the next block for a taker; None if there are no more."""
        with self._taking:
            share = self._shares.setdefault(taker, deque())
            if not share:
                share.extend(self._further())
            return share.popleft() if share else None

    def leave(self, taker: Taker) -> None:
        """Note that a taker is gone. Others get the blocks of its share."""
        with self._taking:
            if share := self._shares.pop(taker, None):
                self._left.append(share)

    def _further(self) -> Sequence[Item]:
        """Return the blocks of a column, or half of the largest share."""
        if self._left:
            return self._left.popleft()
        if (column := next(self._columns, None)) is not None:
            return column
        largest = max(self._shares.values(), key=len)
        half = [largest.pop() for _ in range(-(-len(largest) // 2))]
        return half[::-1]
