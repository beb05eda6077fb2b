"""The loop over all of it: the fastest plan that the machine can hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from planner.candidate import Candidate
from planner.limits import does_not_fit, memory_of_run, time_of_run
from planner.pareto import BestPlans
from planner.partition import Cut, CutPoint
from planner.patch_candidate import PatchCandidate
from planner.patch_sizes import patch_sizes_near
from planner.space import Space
from znni.core.errors import InvalidInput, option
from znni.core.shapes import Shape5, Vec3
from znni.plans.device_partition import parts_of
from znni.plans.plan import Plan

# Different calls that a search prices: some seconds' worth. Only outputs of thousands of voxels an
# axis need more; of those the patches that are likely best have been tried by then.
MOST_CALLS = 6000


class Search(Space):
    """The fastest of all plans for an output, or of some."""

    def fastest(self, count: int = 1) -> list[Plan]:
        """The plans with the least predicted time among all that fit, one for each patch size.

        Exhaustive over patch sizes fitted to the output, where layers pass from the host to the
        GPU, divisions of each side into nested segments, and per layer primitives and the pieces
        that its batch is cut into. Patches are tried in the order of a lower bound on their time,
        and none after the bound passes the last of the best plans found. Where an output is so
        large that many sizes differ by little, a spread of them is tried, and then all near the
        best; and the search ends after ``MOST_CALLS``.

        Args:
            count: of plans, if there are so many.

        Returns:
            the fastest one first.

        Raises:
            DoesNotFit: even the smallest patch takes more memory than allowed.
            InvalidInput: the count is not positive.
        """
        if count < 1:
            raise InvalidInput(f"{count} plans are none; ask for 1 or more")
        best = BestPlans(count)
        if self.division == "all":  # most of the gain for little of the time
            self.dividing("power-of-two")._add_fastest(best)
        self._add_fastest(best)
        if not best.plans:
            raise does_not_fit(self.smallest())
        return best.plans

    def _add_fastest(self, best: BestPlans) -> None:
        """Add the fastest plans of all to the best so far."""
        tried = set[Vec3]()
        self._try_all(self.patches(), tried, best)
        if best.plans:
            pooling = self.network.total_pooling
            near = patch_sizes_near(best.plans[0].patch, self.output, pooling)
            self._try_all(near, tried, best)

    def fastest_of(self, patches: Iterable[Vec3]) -> Plan | None:
        """The fastest plan with one of these patches, if one fits."""
        best = BestPlans(1)
        self._try_all(patches, set(), best)
        return best.plans[0] if best.plans else None

    def fastest_for(self, patch: Vec3, seconds_limit: float = inf) -> Plan | None:
        """The fastest plan with this patch, if one fits and beats the limit.

        Args:
            patch: output voxels.
            seconds_limit: of the whole patch_candidate.
        """
        best, limit = None, seconds_limit
        patch_candidate = self.patch_candidate(patch)
        for bound, cut_point in patch_candidate.by_least_time(self.cut_points):
            if bound >= limit:
                break
            if plan := self._fastest_with(patch_candidate, cut_point, limit):
                best, limit = plan, plan.seconds
        return best

    def lower_bound(self, patch: Vec3) -> float:
        """Seconds of the whole job that no plan with this patch can beat."""
        return next(
            (bound for bound, _ in self.patch_candidate(patch).by_least_time(self.cut_points)), inf
        )

    def smallest(self) -> Plan:
        """The plan that takes the least memory, whatever the time and the limits.

        Of plans that take more of one device and less of another, the one that lacks the least of
        either.

        Raises:
            InvalidInput: the primitives cannot compute the smallest patch.
        """
        if self.division == "all":  # which is no smaller, and takes long where time is no limit
            return self.dividing("power-of-two").smallest()
        patch = self.network.total_pooling
        patch_candidate = self.patch_candidate(patch)
        candidates = [
            self._plan(patch_candidate, candidates)
            for cut in map(patch_candidate.cut, self.cut_points)
            if len(candidates := list(self._smallest_candidates(patch_candidate, cut)))
            == len(cut.partitions)
        ]
        if not candidates:
            what = f"network {self.network.name} in patches of {patch}"
            raise InvalidInput(
                f"no primitives compute {what} there; give {option('device', 'cpu')}"
            )
        return min(candidates, key=_lacking)

    def _try_all(self, patches: Iterable[Vec3], tried: set[Vec3], best: BestPlans) -> None:
        """Add the fastest plans with these patches, but for those tried before, to the best.

        Once there is one, the search ends after ``MOST_CALLS``; no patch left takes less time
        than the bound of the next.
        """
        most = self.calls + MOST_CALLS
        for bound, patch in sorted((self.lower_bound(p), p) for p in set(patches) - tried):
            if bound >= best.limit or (best.plans and self.calls > most):
                break
            tried.add(patch)
            if plan := self.fastest_for(patch, best.limit):
                best.add(plan)

    def _fastest_with(
        self, patch_candidate: PatchCandidate, cut_point: CutPoint, limit: float
    ) -> Plan | None:
        """The fastest plan that passes from the host to the GPU there, within the limit.

        Each device has a memory of its own, and a job's time grows with that of either one's
        layers, which on the GPU is all that they cost. So the fastest layers on the GPU are those
        of the fastest plan, whatever the host does; and among the host's, what their memory costs
        beside their time is weighed with these.
        """
        cut, loads, candidates = (
            patch_candidate.cut(cut_point),
            patch_candidate.least_loads(cut_point),
            list[Candidate](),
        )
        for partition in reversed(cut.partitions):
            device = partition.device
            job_time = patch_candidate.job_time(cut_point, loads, device)
            budget = patch_candidate.budget(cut, device)
            candidate = self._searches[partition.processor].fastest(
                partition, budget, job_time, limit
            )
            if candidate is None:
                return None
            loads[device] = candidate.load
            candidates.insert(0, candidate)
        return self._plan(patch_candidate, candidates)

    def _smallest_candidates(
        self, patch_candidate: PatchCandidate, cut: Cut
    ) -> Iterator[Candidate]:
        """The way of each side that leaves the most of its room, if there is any way."""
        for partition in cut.partitions:
            device = partition.device
            if candidate := self._searches[partition.processor].smallest(
                partition, patch_candidate.budget(cut, device)
            ):
                yield candidate

    def _plan(self, patch_candidate: PatchCandidate, candidates: Iterable[Candidate]) -> Plan:
        segments = tuple(segment for candidate in candidates for segment in candidate.decided)
        size = patch_candidate.patch + self.network.field_of_view - 1
        parts = parts_of(segments, Shape5.of(1, self.network.in_features, size))
        memory, gpu_memory = memory_of_run(
            self.network, patch_candidate.patch, parts, self.overhead
        )
        return Plan(
            self.network,
            self.machine,
            self.output,
            patch_candidate.patch,
            segments,
            memory,
            time_of_run(self.network, patch_candidate.patch, parts, self.overhead),
            self.model.source,
            gpu_memory,
        )


def _lacking(plan: Plan) -> int:
    """The most bytes that a plan takes of a device beyond those allowed; negative if all fits."""
    return max(memory.total - device.memory for memory, device in plan.limits.values())
