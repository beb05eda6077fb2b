"""The search for the fastest plan that the machine can hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import product, starmap
from math import inf
from typing import Self

from planner.candidate import Candidate
from planner.gpu_sharing import Side, fastest_pair
from planner.limits import does_not_fit, memory_of_run, time_of_run
from planner.pareto import BestPlans
from planner.partition import Cut, CutPoint
from planner.patch_candidate import PatchCandidate
from planner.patch_order import Waiting, quick_bounds, waiting_patches
from planner.patch_sizes import patch_sizes_near, thin_patches
from planner.space import Space
from znni.core.errors import InvalidInput, option
from znni.core.processors import FASTEST, GPU, HOST, has_own_memory, may_use_gpu
from znni.core.shapes import AXES, Shape5, Vec3, round_up
from znni.network.geometry import input_box
from znni.plans.block_storage import storage_for
from znni.plans.device_partition import parts_of
from znni.plans.plan import Plan
from znni.plans.stage import itemsize_in
from znni.plans.swept import swept_for

# The most prices that a search works out, which takes a few seconds. Only outputs of thousands of
# voxels per axis need more. By then the most promising patches have been tried, unless it took most
# of these prices to find any plan.
MOST_PRICES = 40_000

# Sweeps are searched for jobs that take so many seconds, and with so many prices for each second.
# These take about a tenth of the job. More prices than the most seldom bring a better sweep. In 19
# jobs of 5 to 10 s on an H200, looking for sweeps took 10.5 s in all, and sweeps gained 14.3 s. In
# shorter jobs, it took as long as it gained.
LONG_JOB = 5
PRICES_PER_SECOND = 100
MOST_PRICES_OF_SWEEPS = 4_000

# A sweep is taken if the predicted time of the best other plan is so many times its own. On an
# H200, predicted gains of 1.08 were none, and larger ones were gains.
GAIN_OF_SWEEPS = 1.1


class Search(Space):
    """The search for the fastest plans for an output."""

    def fastest(self, count: int = 1, known: Plan | None = None) -> list[Plan]:
        """Return the plans with the least predicted time that fit, one for each patch size.

        The search is exhaustive over five choices: the patch sizes fitted to the output; the cut
        point between host and GPU; the windows that a GPU computes at once; the nested segments on
        each device; and each layer's primitives, with the pieces of its batch. It also looks for a
        sweep, if it may, for long jobs and if nothing else fits.

        It tries patches in the order of a lower bound on their time. It ends when the bound passes
        the slowest of the best plans found. If the output is very large, many patch sizes differ by
        little. Then the search tries a spread of them, and after that all sizes near the best. It
        ends after ``MOST_PRICES`` prices.

        Args:
            count: the number of plans wanted. Fewer may exist.
            known: a plan for this output that fits. Its time is the first limit of the search.

        Returns:
            the plans, fastest first.

        Raises:
            DoesNotFit: even the smallest patch takes more memory than allowed.
            InvalidInput: the count is not positive.
        """
        if count < 1:
            raise InvalidInput(f"{count} plans were asked for; ask for 1 or more")
        best = BestPlans(count)
        if known:
            best.add(known)
        if self.division == "all":  # pieces of powers of two bring most of the gain in little time
            self.dividing("power-of-two")._add_fastest(best)
        self._add_fastest(best)
        return best.plans

    def _by_cut_points(self) -> list[Self]:
        """Return searches that share out the cut points. The plans of the first limit the others.

        If a GPU has little memory, plans for both devices have bounds that no plan reaches. Their
        prices would use up ``MOST_PRICES`` before a plan for one device is tried.
        """
        if self.device != FASTEST or not self.machine.gpus or self.given.is_tiled:
            return self.by_network
        alone = [some for some in (self.on(HOST), self.on(GPU)) if some.cut_points]
        patches = list(self.patches())
        first = sorted(alone, key=lambda some: min(quick_bounds(some, patches)))
        known = {cut_point for some in first for cut_point in some.cut_points}
        others = [cut_point for cut_point in self.cut_points if cut_point not in known]
        return [*first, *([self.through(others)] if others else [])]

    def _by_windows_at_once(self) -> list[Self]:
        """Return searches that share out the numbers of windows at once, or the axes of sweeps.

        The host computes one at a time, because a window of a few voxels fills its cores.
        """
        if not self.network.window:
            return self.by_axis
        able = may_use_gpu(self.device) and self.machine.gpus
        alone = [self.computing(1)] if 1 in self.windows_at_once else []
        several = [number for number in self.windows_at_once if number > 1]
        return alone + [self.on(GPU).computing(number) for number in several if able]

    def _add_fastest(self, best: BestPlans) -> None:
        """Add the fastest plans of all patches to the best so far.

        Raises:
            DoesNotFit: even the smallest patch takes more memory than allowed.
        """
        searches = [one for some in self._by_cut_points() for one in some._by_windows_at_once()]
        tried = [(some, set[Vec3]()) for some in searches]
        for some, patches in tried:
            some._try_all(self.patches(), patches, best)
            some._try_near(patches, best)
        for some, patches in tried:  # a later search may have found another patch
            some._try_near(patches, best)
        sweeps = self._sweeps_beside(best)
        alone = not best.plans
        if alone:
            smallest = self.smallest()
            if _lacking(smallest) > 0:
                raise does_not_fit(smallest, self.overhead)
            best.add(smallest)
        for some in sweeps.by_device if sweeps else ():
            some._add_sweeps(best, alone=alone)

    def _sweeps_beside(self, best: BestPlans) -> Self | None:
        """Return the search for sweeps if they are worth it, given the best plans so far.

        Without any plan, all sweeps are. Else all layers must be on one device. On the host, sweeps
        of sliding networks gain little.
        """
        if self.division == "all":  # a sweep is found with pieces of powers of two
            return None
        if not best.plans:
            return self.among_sweeps
        if best.plans[0].seconds < LONG_JOB:
            return None
        device, *others = (part.device for part in best.plans[0].parts)
        if others or not (self.given.is_tiled or has_own_memory(device)):
            return None
        return self.on(device).among_sweeps

    def _add_sweeps(self, best: BestPlans, *, alone: bool) -> None:
        """Add the fastest sweep to the best plans so far, if it gains enough.

        Only some patches are tried for each axis, and those near the best of them all.

        Args:
            best: the best plans so far.
            alone: whether they have only the smallest plan.
        """
        known, tried = best.plans[0], {axis: set[Vec3]() for axis in self.axes}
        gain = 1.0 if known.is_swept else GAIN_OF_SWEEPS
        sweeps = BestPlans(1, known.seconds / gain)
        for_job = inf if alone else PRICES_PER_SECOND * known.seconds
        most = int(min(MOST_PRICES_OF_SWEEPS, for_job)) // len(tried)
        for axis, patches in tried.items():
            thin = thin_patches(self.output, self.network.granularity, axis)
            self.sweeping(axis)._try_all(thin, patches, sweeps, most)
        for axis in [it.network.sweep_axis for it in sweeps.plans]:
            self.sweeping(axis)._try_near(tried[axis], sweeps, most // 2)
        for sweep in sweeps.plans:
            best.add(sweep)

    def _try_near(self, tried: set[Vec3], best: BestPlans, most_prices: int = MOST_PRICES) -> None:
        """Add the fastest plans with patches near the best one to the best so far."""
        if best.plans:
            near = patch_sizes_near(best.plans[0].patch, self.output, self.network.granularity)
            self._try_all(near, tried, best, most_prices)

    def fastest_of(self, patches: Iterable[Vec3], known: Plan | None = None) -> Plan | None:
        """Return the fastest plan with one of these patches, if one fits.

        Args:
            patches: the patches.
            known: a plan for this output that fits. The result is this plan if none is faster.
        """
        best, listed = BestPlans(1), list(patches)
        if known:
            best.add(known)
        for some in self._by_windows_at_once():
            some._try_all(listed, set(), best)
        return best.plans[0] if best.plans else None

    def fastest_for(self, patch: Vec3) -> Plan | None:
        """Return the fastest plan with this patch, if one fits."""
        return self.fastest_of([patch])

    def smallest(self) -> Plan:
        """Return the plan that takes the least memory, whatever the time and the limits.

        Some plans take more of one device and less of another. Then the plan wins whose largest
        shortage on any device is smallest. It may be a sweep. ``patch_sizes.py`` is not asked: it
        lists what is worth trying.

        Raises:
            InvalidInput: the primitives cannot compute the smallest patch.
        """
        if self.division == "all":  # no smaller, and slow to search without a limit on time
            return self.dividing("power-of-two").smallest()
        if len(apart := self.by_network) > 1:
            return min((some.smallest() for some in apart), key=_lacking)
        smallest, sweeps = self._smallest_of_one_kind(), self.among_sweeps
        for sweep in sweeps.by_network if sweeps else ():
            if sweep.least_kept < smallest.device_memory.working:
                smallest = min(smallest, sweep.smallest(), key=_lacking)
        return smallest

    def _smallest_of_one_kind(self) -> Plan:
        """Return the plan that takes the least memory, among sweeps along one axis or other plans.

        Raises:
            InvalidInput: the primitives cannot compute the smallest patch.
        """
        candidates = [
            self._plan(patch_candidate, candidates)
            for patch_candidate in map(self.patch_candidate, self._smallest_patches())
            for cut in map(patch_candidate.cut, self.cut_points)
            if len(candidates := list(self._smallest_candidates(patch_candidate, cut)))
            == len(cut.partitions)
        ]
        if not candidates:
            what = f"network {self.network.name} in patches of {self.network.granularity}"
            raise InvalidInput(
                f"no primitives compute {what} on this device; give {option('device', HOST)}"
            )
        return min(candidates, key=_lacking)

    def _smallest_patches(self) -> Iterator[Vec3]:
        """Yield the patches of which one takes the least memory.

        The smallest patch that a network can compute is its granularity. If the input of this patch
        has a whole axis of the volume, a patch with the whole axis may take less: it has no borders
        there.
        """
        network, least = self.network, self.network.granularity
        extents = [[granule] for granule in least]
        if network.is_tiled:
            seen = input_box(network, least).size
            for axis, tried, output, read in zip(AXES, extents, self.output, seen, strict=True):
                thin = network.is_swept and axis == network.sweep_axis
                if tried[0] < output <= read and not thin:
                    tried.append(round_up(output, tried[0]))
        return starmap(Vec3, product(*extents))

    def _try_all(
        self,
        patches: Iterable[Vec3],
        tried: set[Vec3],
        best: BestPlans,
        most_prices: int = MOST_PRICES,
    ) -> None:
        """Add the fastest plans with these patches to the best, without the patches tried before.

        The patch with the least bound comes next. Its bound is replaced by those of its cut points.

        As soon as one plan is known, the search ends after ``most_prices`` prices. If that plan
        came late, it ends after twice as many as until then. It also ends when the least bound
        passes the best plans.
        """
        begun, most = self.calls, self.calls + most_prices
        candidates: dict[Vec3, PatchCandidate] = {}
        waiting = waiting_patches(self, set(patches) - tried)
        heapify(waiting)
        while waiting:
            bound, patch, cut_point = heappop(waiting)
            if bound >= best.limit or (best.some_known and self.calls > most):
                break
            if cut_point is None:
                tried.add(patch)
                if candidates and self.network.window:
                    candidate = next(iter(candidates.values())).in_patches_of(patch)
                else:
                    candidate = self.patch_candidate(patch)
                candidates[patch] = candidate
                for each in self.cut_points:
                    heappush(waiting, Waiting(candidate.least_seconds(each), patch, each))
                continue
            if not candidates[patch].fits_one_fragment(cut_point):
                continue
            if plan := self._fastest_with(candidates[patch], cut_point, best.limit):
                if not best.plans:
                    most = max(most, 2 * self.calls - begun)
                best.add(plan)

    def _fastest_with(
        self, patch_candidate: PatchCandidate, cut_point: CutPoint, limit: float
    ) -> Plan | None:
        """Return the fastest plan with this cut point, if one beats the limit."""
        cut, least = patch_candidate.cut(cut_point), patch_candidate.least_loads(cut_point)
        sides = [
            Side(
                self._searches[partition.processor],
                partition,
                patch_candidate.budget(cut, partition.device),
                partial(patch_candidate.job_time, cut_point, partition.device),
            )
            for partition in cut.partitions
        ]
        if len(sides) == 1:
            alone = sides[0].fastest({}, limit)
            return alone and self._plan(patch_candidate, [alone])
        host, gpu = sides
        pair = fastest_pair(host, gpu, least[HOST], limit)
        return pair and self._plan(patch_candidate, pair)

    def _smallest_candidates(
        self, patch_candidate: PatchCandidate, cut: Cut
    ) -> Iterator[Candidate]:
        """Yield each partition's candidate that leaves the most of its budget, if there is one."""
        for partition in cut.partitions:
            device = partition.device
            if candidate := self._searches[partition.processor].smallest(
                partition, patch_candidate.budget(cut, device)
            ):
                yield candidate

    def _plan(self, patch_candidate: PatchCandidate, candidates: Iterable[Candidate]) -> Plan:
        segments = tuple(segment for candidate in candidates for segment in candidate.decided)
        patch = patch_candidate.patch
        size = input_box(self.network, patch).size
        shape_in = Shape5.of(self.network.together, self.network.in_features, size)
        storage = storage_for(self.network, patch)
        swept = swept_for(self.network, patch, self.output, self.overhead.workers)
        parts = parts_of(segments, shape_in, storage, swept)
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
            itemsize_in(self.overhead.stored, on_host=not parts[0].has_own_memory),
        )


def _lacking(plan: Plan) -> int:
    """Return the largest shortage of memory on any device, in bytes; negative if the plan fits."""
    return max(memory.total - device.memory for memory, device in plan.limits.values())
