"""Pareto fronts, and the best plans that a search has found."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from math import inf

from znni.plans.plan import Plan


class Front:
    """Pairs of numbers, none of which another pair equals or beats in both. Less is better.

    Pairs may be offered in the order of a third number. Then the front decides in logarithmic time
    whether earlier pairs beat a new one in all three numbers.
    """

    def __init__(self) -> None:
        self._first: list[float] = []  # rising
        self._second: list[float] = []  # the second numbers of the same pairs, falling

    def beats(self, first: float, second: float) -> bool:
        """Return whether a pair in the front equals or beats this one in both numbers."""
        no_larger = bisect_right(self._first, first)
        return no_larger > 0 and self._second[no_larger - 1] <= second

    def admits(self, first: float, second: float) -> bool:
        """Add a pair and remove the pairs that it beats, unless a pair in the front beats it.

        Returns:
            whether the pair was added.
        """
        if self.beats(first, second):
            return False
        start = stop = bisect_left(self._first, first)
        while stop < len(self._second) and self._second[stop] >= second:
            stop += 1
        self._first[start:stop] = [first]
        self._second[start:stop] = [second]
        return True


class GpuFronts:
    """A Pareto front of four numbers of bytes: kept and working, on the host and on a GPU.

    Most steps take nothing of the GPU. They share one front, so they are decided as fast as there.
    """

    def __init__(self) -> None:
        self._fronts: dict[tuple[int, int], Front] = {}

    def admits(self, resident: int, working: int, on_gpu: tuple[int, int]) -> bool:
        """Add bytes unless others are no more.

        Args:
            resident: the bytes kept on the host.
            working: the bytes on the host within a call.
            on_gpu: the bytes kept on the GPU, and those within a call.

        Returns:
            whether they were added.
        """
        gpu_resident, most = on_gpu
        for (other_kept, other_most), front in self._fronts.items():
            if other_kept <= gpu_resident and other_most <= most and front.beats(resident, working):
                return False
        self._fronts.setdefault(on_gpu, Front()).admits(resident, working)
        return True


class BestPlans:
    """The fastest plans found so far, fastest first.

    Args:
        count: the number of plans to keep.
        seconds: the seconds that all of them must beat.
    """

    def __init__(self, count: int, seconds: float = inf) -> None:
        self.plans: list[Plan] = []
        self._count, self._seconds = count, seconds

    @property
    def limit(self) -> float:
        """The seconds that a new plan must beat."""
        return self.plans[-1].seconds if len(self.plans) == self._count else self._seconds

    @property
    def some_known(self) -> bool:
        """True if a plan was found, or all must beat another plan."""
        return bool(self.plans) or self._seconds < inf

    def add(self, plan: Plan) -> None:
        """Add a plan if it beats the limit, and remove the slowest if there are too many.

        If two plans have the same patch, only the faster one stays.
        """
        same = (other for other in self.plans if other.patch == plan.patch)
        if plan.seconds >= self.limit or any(other.seconds <= plan.seconds for other in same):
            return
        self.plans = [other for other in self.plans if other.patch != plan.patch]
        insort(self.plans, plan, key=lambda plan: plan.seconds)
        del self.plans[self._count :]
