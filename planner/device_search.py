"""The ways to run layers on one device: divisions into segments, and a primitive for each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import inf
from typing import TypeAlias

from planner.bounds import Bounds, LeastSeconds
from planner.candidate import Candidate, JobTime, MemoryBudget, Segments
from planner.choices import Choice, Slot, least_memory, undominated_within
from planner.cost_model import CostModel
from planner.gpu_budget import NO_ROOM, GpuRoom
from planner.layers import Options
from planner.micro_batches import Limit
from planner.partition import Partition
from planner.split import fusible_convolutions, splits
from znni.core.options import Division
from znni.network.network import Network, PooledConv
from znni.plans.device_partition import DevicePart
from znni.plans.primitive import Primitive

# Choices of steps for slots, within bytes and seconds, as ``undominated_within`` gives them.
Chooser: TypeAlias = Callable[[list[Slot], float, float], list[Choice]]


class DeviceSearch:
    """The ways to run layers of a network on one device, with what is known of them.

    Args:
        network: whose layers.
        primitives: the device's.
        model: predicts their times.
        division: the sizes of the pieces that a layer's batch may be computed in.
        gpu_room: what layers on the host may take of a GPU.
    """

    def __init__(
        self,
        network: Network,
        primitives: Collection[Primitive],
        model: CostModel,
        division: Division,
        gpu_room: GpuRoom = NO_ROOM,
    ) -> None:
        self._network = network
        self._primitives = primitives
        self._model = model
        self._division: Division = division
        self._gpu_room = gpu_room
        self._options = Options(primitives, model, division, gpu_room)
        self._choose: Chooser = undominated_within

    def among(self, primitives: Collection[Primitive]) -> DeviceSearch:
        """The search among some of the primitives."""
        some = [primitive for primitive in self._primitives if primitive in primitives]
        return self._restricted(some, self._division)

    def dividing(self, division: Division) -> DeviceSearch:
        """The search among ways with batches in pieces of other sizes."""
        bounds = self.bounds  # of all calls that there may be
        other = copy(self)
        other._division, other._options = division, self._options.dividing(division)
        other.bounds = bounds
        return other

    def within(self, gpu_room: GpuRoom) -> DeviceSearch:
        """The search with other room on a GPU for layers on the host."""
        other = copy(self)
        other._gpu_room = gpu_room
        return other._restricted(self._primitives, self._division)

    def choosing(self, choose: Chooser) -> DeviceSearch:
        """The search with another way to give the memory to the steps, with what this one knows."""
        other = copy(self)
        other._choose = choose
        return other

    def _restricted(self, primitives: Collection[Primitive], division: Division) -> DeviceSearch:
        other = DeviceSearch(self._network, primitives, self._model, division, self._gpu_room)
        other._choose = self._choose
        other.bounds = self.bounds  # what no way beats, none of some do
        return other

    def __len__(self) -> int:
        """How many different calls were priced, which is what a search spends its time on."""
        return len(self._options)

    @cached_property
    def bounds(self) -> LeastSeconds:
        """The least time that each layer can take."""
        return Bounds(self._network, self._options, self._fusible)

    @cached_property
    def _fusible(self) -> tuple[PooledConv, ...]:
        return fusible_convolutions(self._network, self._options)

    @property
    def _option_sets(self) -> tuple[Options, ...]:
        """Whole batches first: their time bounds the search among pieces, which looks at few."""
        whole = self._options.dividing("none")
        return (whole, self._options) if self._options.divides else (whole,)

    def fastest(
        self, partition: Partition, budget: MemoryBudget, job_time: JobTime, limit: float
    ) -> Candidate | None:
        """The way with which a job takes the least time, if one fits and beats the limit.

        Args:
            partition: the layers.
            budget: bytes that they may take.
            job_time: of the job.
            limit: its seconds.
        """
        best: Candidate | None = None
        divided = list(self._divisions(partition, budget))
        for options, (segments, allowed) in product(self._option_sets, divided):
            layers_limit = job_time.layers_within(limit)
            slots = self._slots(segments, partition, options, allowed, layers_limit)
            for choice in self._choose(slots, allowed, layers_limit) if slots else []:
                candidate = Candidate(segments, choice)
                if (seconds := job_time.seconds(candidate.load)) < limit:
                    best, limit = candidate, seconds
        return best

    def smallest(self, partition: Partition, budget: MemoryBudget) -> Candidate | None:
        """The way that leaves the most of its room, or lacks the least, whatever the time.

        Args:
            partition: the layers.
            budget: bytes that they may take.
        """
        best, most = None, -inf
        for segments, _ in self._divisions(partition, lambda _: inf):
            slots = [
                replace(slot, options=self._options(slot.options[0], in_place=slot.in_place))
                for slot in self._asked(segments, partition)
            ]
            if all(slot.options for slot in slots):
                choice = least_memory(slots)
                first_input = partition.given._replace(n=segments[0].sub_batch)
                left = budget(first_input) - choice.resident - choice.peak
                if left > most:
                    best, most = Candidate(segments, choice), left
        return best

    def _divisions(
        self, partition: Partition, budget: MemoryBudget
    ) -> Iterator[tuple[Segments, float]]:
        """All divisions of the layers, and the bytes that each may take.

        The first segment may take a few of the fragments given at a time.
        """
        handed = partition.handed.nbytes if partition.handed else 0
        batch = partition.given.n
        for some in (n for n in range(batch, 0, -1) if batch % n == 0):
            first = partition.given._replace(n=some)
            allowed = budget(first)
            for segments in splits(
                partition.nodes,
                first,
                allowed - handed,
                self._fusible,
                partition.device,
                in_place=bool(handed),
            ):
                yield segments, allowed

    def _slots(
        self,
        segments: Segments,
        partition: Partition,
        options: Options,
        allowed: float,
        limit: float,
    ) -> list[Slot]:
        """Each step's options that fit, runs and company; empty where no choice of them does.

        That is looked at more closely step by step: by the bounds, which cost nothing; by relaxed
        options, which are few; and by lists of pieces, which are listed only where the best
        choices for the other steps leave them time and memory.
        """
        asked = self._asked(segments, partition)
        least = [slot.runs * self.bounds.of_step(slot.options[0]) for slot in asked]
        slots: list[Slot] = []
        for index, slot in enumerate(asked):
            if sum(least) >= limit:
                return []
            found = slot.fitting(options.relaxed(slot.options[0], in_place=slot.in_place), allowed)
            if not found.options:
                return []
            least[index] = found.runs * found.options[0].seconds
            slots.append(found)
        if not options.divides:
            return slots
        for index, slot in enumerate(asked):
            if slot.options[0].shape_in.n > 1:
                others = [*slots[:index], *slots[index + 1 :]]
                found = self._listed(slot, slots[index], others, options, allowed, limit)
                if not found.options:
                    return []
                slots[index] = found
        return slots

    def _listed(
        self,
        asked: Slot,
        relaxed: Slot,
        others: list[Slot],
        options: Options,
        allowed: float,
        limit: float,
    ) -> Slot:
        """A step's options with lists of pieces that fit beside some choice for the other steps.

        Args:
            asked: the step.
            relaxed: its relaxed options.
            others: the other steps, with options that are relaxed or not.
            options: for the step.
            allowed: bytes for all steps.
            limit: seconds of all steps.
        """
        (step,) = asked.options
        arrays = asked.peak(step)
        beside = undominated_within(
            others, allowed, limit - asked.runs * relaxed.options[0].seconds
        )
        within = Limit(
            ((limit - it.seconds) / asked.runs, allowed - it.resident - arrays) for it in beside
        )
        if not any(
            within.holds(candidate.seconds, relaxed.kept(candidate) - arrays)
            for candidate in relaxed.options
        ):
            return replace(asked, options=())
        return asked.fitting(options(step, in_place=asked.in_place, limit=within), allowed)

    def _asked(self, segments: Segments, partition: Partition) -> list[Slot]:
        """The places of the steps, with what is asked of each as its only option."""
        part = DevicePart(segments, partition.given, hands_on=partition.handed is not None)
        runs = [n for segment, n in part.runs() for _ in segment.steps]
        return [
            Slot((step,), n, held, part.writes_in_place(step))
            for (step, held), n in zip(part.held_beside(), runs, strict=True)
        ]
