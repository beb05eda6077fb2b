"""Pareto fronts, and the best plans that a search has found."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from math import inf

from znni.plans.plan import Plan


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


class BestPlans:
    """The fastest plans so far, the first one first.

    Args:
        count: how many are kept.
    """

    def __init__(self, count: int) -> None:
        self.plans: list[Plan] = []
        self._count = count

    @property
    def limit(self) -> float:
        """Seconds that a plan must take less than to be one of them."""
        return self.plans[-1].seconds if len(self.plans) == self._count else inf

    def add(self, plan: Plan) -> None:
        """Add a plan that takes less than the limit; the slowest of too many goes.

        Of two for the same patch the slower one goes.
        """
        same = (other for other in self.plans if other.patch == plan.patch)
        if any(other.seconds <= plan.seconds for other in same):
            return
        self.plans = [other for other in self.plans if other.patch != plan.patch]
        insort(self.plans, plan, key=lambda plan: plan.seconds)
        del self.plans[self._count :]
