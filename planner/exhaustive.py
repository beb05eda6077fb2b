"""The loop over all of it: the fastest plan that the machine can hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import islice, product
from math import inf
from typing import TypeAlias

from planner.best import Best
from planner.bounds import Bounds
from planner.costs import BUILT_IN, CostModel
from planner.layers import Choice, Options, Slot, least_memory, undominated_within
from planner.limits import allowed_to_layers, does_not_fit, fits, memory_of_run
from planner.overhead import Overhead
from planner.sizes import patch_sizes, patch_sizes_near
from planner.split import fusible_convolutions, splits
from znni.errors import InvalidInput, option
from znni.machine import Device, Machine
from znni.network import Conv, Network, PooledConv
from znni.options import Division
from znni.plan_time import PlanTime
from znni.plans import Plan, Segment, Step, held_beside, segment_runs, working_peak
from znni.primitive import Catalogue
from znni.shapes import Shape5, Vec3

Segments: TypeAlias = tuple[Segment, ...]
StepOptions: TypeAlias = Callable[[Step], tuple[Step, ...]]
# Choices of steps for slots, within bytes and seconds, as ``undominated_within`` gives them.
Chooser: TypeAlias = Callable[[list[Slot], float, float], list[Choice]]

# Different calls that a search prices: some seconds' worth. Only outputs of thousands of voxels an
# axis need more; of those the patches that are likely best have been tried by then.
MOST_CALLS = 6000


def fastest_plan(
    network: Network,
    output: Vec3,
    machine: Machine,
    catalogue: Catalogue,
    overhead: Overhead,
    model: CostModel = BUILT_IN,
    division: Division = "power-of-two",
) -> Plan:
    """The plan with the least predicted time among all that fit: the first of ``fastest_plans``."""
    return fastest_plans(network, output, machine, catalogue, overhead, model, division)[0]


def fastest_plans(
    network: Network,
    output: Vec3,
    machine: Machine,
    catalogue: Catalogue,
    overhead: Overhead,
    model: CostModel = BUILT_IN,
    division: Division = "power-of-two",
    count: int = 1,
) -> list[Plan]:
    """The plans with the least predicted time among all that fit, one for each patch size.

    Takes what ``Search`` takes, and returns and raises what its ``fastest`` does.
    """
    return Search(network, output, machine, catalogue, overhead, model, division).fastest(count)


class Search:
    """The plans for an output; what the layers take is worked out once, however often it is asked.

    Args:
        network: what to compute.
        output: extents of the output wanted.
        machine: its memory is the limit.
        catalogue: the primitives to choose from, all of one device.
        overhead: what the run takes beside the layers, in memory and in time.
        model: predicts the times of the primitives.
        division: the sizes of the pieces that a layer's batch may be computed in.
    """

    def __init__(
        self,
        network: Network,
        output: Vec3,
        machine: Machine,
        catalogue: Catalogue,
        overhead: Overhead,
        model: CostModel = BUILT_IN,
        division: Division = "power-of-two",
    ) -> None:
        self.network = replace(network, weights=None)
        self.output = output
        self.machine = machine
        self.catalogue = catalogue
        self._overhead = overhead
        self.model = model
        self._division: Division = division
        self._options = Options(catalogue.values(), model, division)
        self._choose: Chooser = undominated_within

    @property
    def device(self) -> Device:
        """Where the layers run: the host, or its first GPU."""
        primitive = next(iter(self.catalogue.values()))
        return self.machine.host if primitive.device.kind == "cpu" else self.machine.gpus[0]

    @cached_property
    def bounds(self) -> Bounds:
        """The least time that each layer can take."""
        return Bounds(self.network, self._options, self._fusible)

    @cached_property
    def _fusible(self) -> tuple[PooledConv, ...]:
        return fusible_convolutions(self.network, self._options)

    @property
    def _option_sets(self) -> tuple[StepOptions, ...]:
        """Whole batches first: their time bounds the search among pieces, which looks at few."""
        whole = self._options.whole
        return (whole, self._options) if self._options.divides else (whole,)

    def within(self, memory: int) -> Search:
        """The search under another limit, with what this one knows of the layers.

        Args:
            memory: bytes of the device where the layers run.
        """
        other = copy(self)
        limited = replace(self.device, memory=memory)
        if limited.kind == "cpu":
            other.machine = replace(self.machine, host=limited)
        else:
            other.machine = replace(self.machine, gpus=(limited, *self.machine.gpus[1:]))
        return other

    def among(self, primitives: Collection[str]) -> Search:
        """The search among some of the primitives, by their names."""
        some = {name: found for name, found in self.catalogue.items() if name in primitives}
        return self._restricted(some, self._division)

    def choosing(self, choose: Chooser) -> Search:
        """The search with another way to give the memory to the steps, with what this one knows."""
        other = copy(self)
        other._choose = choose
        return other

    @property
    def calls(self) -> int:
        """How many different calls were priced so far."""
        return len(self._options)

    def undivided(self) -> Search:
        """The search among plans that compute each layer's batch whole; the quicker one."""
        return self._restricted(self.catalogue, "none")

    def patches(self) -> Iterator[Vec3]:
        """The patches that are tried first: of those that differ by little a spread."""
        isotropic = all(
            len(set(layer.kernel if isinstance(layer, Conv) else layer.window)) == 1
            for layer in self.network.layers
        )
        return patch_sizes(self.output, self.network.total_pooling, isotropic=isotropic)

    def fastest(self, count: int = 1) -> list[Plan]:
        """The plans with the least predicted time among all that fit, one for each patch size.

        Exhaustive over patch sizes fitted to the output, divisions of the network into nested
        segments, and per layer primitives and the pieces that its batch is cut into. Patches are
        tried in the order of a lower bound on their time, and none after the bound passes the last
        of the best plans found. Where an output is so large that many sizes differ by little, a
        spread of them is tried, and then all near the best; and the search ends after
        ``MOST_CALLS``.

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
        best, tried = Best(count), set[Vec3]()
        self._try_all(self.patches(), tried, best)
        if not best.plans:
            raise does_not_fit(self.smallest())
        pooling = self.network.total_pooling
        self._try_all(patch_sizes_near(best.plans[0].patch, self.output, pooling), tried, best)
        return best.plans

    def fastest_of(self, patches: Iterable[Vec3]) -> Plan | None:
        """The fastest plan with one of these patches, if one fits."""
        best = Best(1)
        self._try_all(patches, set(), best)
        return best.plans[0] if best.plans else None

    def fastest_for(self, patch: Vec3, seconds_limit: float = inf) -> Plan | None:
        """The fastest plan with this patch, if one fits and beats the limit.

        Args:
            patch: output voxels.
            seconds_limit: of the whole job.
        """
        allowed = allowed_to_layers(self.network, patch, self.machine, self.device, self._overhead)
        patches = self.output.ceil_div(patch).volume
        least = self._time(patch, 0.0, 0, 0)
        limit = seconds_limit
        patch_input = self._patch_input(patch)
        bounds = self.bounds.of_layers(patch)
        divided = list(self._splits(patch_input, allowed))
        best: tuple[Segments, Choice] | None = None
        for options, segments in product(self._option_sets, divided):
            layers_limit = least.computing_within(limit, patches) - least.computing
            slots = self._slots(segments, patch_input, options, bounds, allowed, layers_limit)
            choices = self._choose(slots, allowed, layers_limit) if slots else []
            for choice in choices:
                time = self._time(patch, choice.seconds, choice.resident, choice.peak)
                if (seconds := time.total(patches)) < limit:
                    best, limit = (segments, choice), seconds
        return best and self._plan(patch, *best)

    def smallest(self) -> Plan:
        """The plan that takes the least memory, whatever the time and the limit.

        Raises:
            InvalidInput: the primitives cannot compute the smallest patch.
        """
        patch = self.network.total_pooling
        patch_input = self._patch_input(patch)
        bounds = self.bounds.of_layers(patch)
        candidates = [
            (segments, least_memory(slots))
            for segments in self._splits(patch_input, inf)
            if (slots := self._slots(segments, patch_input, self._options, bounds, inf, inf))
        ]
        if not candidates:
            what = f"network {self.network.name} in patches of {patch}"
            raise InvalidInput(f"no GPU primitives compute {what}; give {option('device', 'cpu')}")
        return self._plan(patch, *min(candidates, key=lambda c: c[1].resident + c[1].peak))

    def fits(self) -> bool:
        """Whether there is any plan within the limits."""
        try:
            return fits(self.smallest())
        except InvalidInput:
            return False

    def lower_bound(self, patch: Vec3) -> float:
        """Seconds of the whole job that no plan with this patch can beat.

        One whose layers took no longer than their bounds, and no memory.
        """
        time = self._time(patch, sum(self.bounds.of_layers(patch)), 0, 0)
        return time.total(self.output.ceil_div(patch).volume)

    def _restricted(self, catalogue: Catalogue, division: Division) -> Search:
        """A search among some of the plans."""
        other = Search(
            self.network,
            self.output,
            self.machine,
            catalogue,
            self._overhead,
            self.model,
            division,
        )
        other._choose = self._choose
        other.bounds = self.bounds  # what no plan beats, none of some do
        return other

    def _try_all(self, patches: Iterable[Vec3], tried: set[Vec3], best: Best) -> None:
        """Add the fastest plans with these patches, but for those tried before, to the best.

        Once there is one, the search ends after ``MOST_CALLS``; no patch left takes less time
        than the bound of the next.
        """
        most = len(self._options) + MOST_CALLS
        for bound, patch in sorted((self.lower_bound(p), p) for p in set(patches) - tried):
            if bound >= best.limit or (best.plans and len(self._options) > most):
                break
            tried.add(patch)
            if plan := self.fastest_for(patch, best.limit):
                best.add(plan)

    def _splits(self, patch_input: Shape5, allowed: float) -> Iterator[Segments]:
        return splits(self.network, patch_input.size, allowed, self._fusible, self.device.kind)

    def _slots(
        self,
        segments: Segments,
        patch_input: Shape5,
        options: StepOptions,
        bounds: list[float],
        allowed: float,
        limit: float,
    ) -> list[Slot]:
        """Each step's options that fit, runs and company.

        Empty where a step has none, or as soon as the fastest options of the steps so far and the
        bounds of the rest together reach the limit.
        """
        runs = [n for segment, n in segment_runs(segments) for _ in segment.steps]
        seconds = sum(bounds)
        rest = iter(bounds)
        slots = []
        for (step, held), n in zip(held_beside(segments, patch_input), runs, strict=True):
            fitting = tuple(
                option
                for option in options(step)
                if held + option.cost.memory.working + option.cost.memory.resident <= allowed
            )
            if not fitting:
                return []
            seconds += n * fitting[0].seconds - sum(islice(rest, len(step.layers)))
            if seconds >= limit:
                return []
            slots.append(Slot(fitting, n, held))
        return slots

    def _patch_input(self, patch: Vec3) -> Shape5:
        size = patch + self.network.field_of_view - 1
        return Shape5.of(1, self.network.in_features, size)

    def _time(self, patch: Vec3, layers: float, resident: int, working: int) -> PlanTime:
        kind = self.device.kind
        return self._overhead.time_of_run(self.network, patch, kind, layers, resident, working)

    def _plan(self, patch: Vec3, segments: Segments, choice: Choice) -> Plan:
        chosen = iter(choice.steps)
        segments = tuple(
            replace(segment, steps=tuple(islice(chosen, len(segment.steps))))
            for segment in segments
        )
        working, _ = working_peak(segments, self._patch_input(patch))
        memory = memory_of_run(
            self.network, patch, self.device, self._overhead, choice.resident, working
        )
        time = self._time(patch, choice.seconds, choice.resident, working)
        costs = self.model.source
        return Plan(
            self.network,
            self.machine,
            self.output,
            patch,
            segments,
            memory[0],
            time,
            costs,
            memory[1],
        )
