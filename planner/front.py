"""Pareto fronts: what nothing else equals or beats in every respect."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Front:
    """Pairs of numbers, the less the better, none of which another equals or beats in both.

    What comes in the order of a third number is so held to all that beats it in the three, in
    logarithmic time.
    """

    def __init__(self) -> None:
        self._first: list[float] = []  # rising
        self._second: list[float] = []  # of the same pairs: falling

    def admits(self, first: float, second: float) -> bool:
        """Add a pair, in place of those that it beats, unless one that is there beats it.

        Returns:
            whether it was added.
        """
        no_larger = bisect_right(self._first, first)
        if no_larger and self._second[no_larger - 1] <= second:
            return False
        start = stop = bisect_left(self._first, first)
        while stop < len(self._second) and self._second[stop] >= second:
            stop += 1
        self._first[start:stop] = [first]
        self._second[start:stop] = [second]
        return True
