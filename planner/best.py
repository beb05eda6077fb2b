"""The best of the plans that a search has come by."""

from __future__ import annotations

from bisect import insort
from math import inf

from znni.plans import Plan


class Best:
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
