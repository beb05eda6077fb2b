"""The search for the fastest candidate on one device: segments, and a primitive for each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import TypeAlias

from planner.bounds import Bounds, LeastSeconds, packed_fusion
from planner.candidate import Candidate, JobTime, MemoryBudget, Segments
from planner.choices import Choice, Slot, least_memory, least_peak, undominated_within
from planner.cost_model import CostModel
from planner.overhead import Load
from planner.partition import Partition
from planner.partition_bounds import ROUNDED, PartitionBounds
from planner.segmentations import NO_SECONDS_LIMIT, SecondsLimit, segmentations
from planner.slot_options import slots_that_fit
from planner.step_options import StepOptions
from planner.tiled_segments import tiled_segments
from znni.core.option_types import Division
from znni.core.shapes import FLOAT_BYTES
from znni.network.layers import Operation
from znni.network.network import Network
from znni.plans.block_storage import BlockStorage
from znni.plans.device_partition import DevicePart
from znni.plans.primitive import Primitive, TakesPacked
from znni.plans.rewrites.fusion import Fusion
from znni.plans.rewrites.fusion_rules import fusions

# The bytes of a part of a packed number.
PART_BYTES = 2

# Few voxels do not fill a GPU, and the deep layers of a small window have few.
WINDOWS_AT_ONCE = (1, 2, 3, 4, 8, 16)

# A function that chooses steps for slots within bytes and seconds, such as ``undominated_within``.
Chooser: TypeAlias = Callable[[list[Slot], float, float, float], Iterable[Choice]]


@dataclass
class SecondsToBeat:
    """The seconds of the fastest job found so far."""

    seconds: float


class DeviceSearch:
    """The search among all candidates for layers on one device.

    It remembers the calls that it has priced.

    Args:
        network: the network.
        primitives: the primitives of the device.
        model: the model that predicts their times.
        division: the sizes of the pieces that a layer's batch may be computed in.
    """

    def __init__(
        self,
        network: Network,
        primitives: Collection[Primitive],
        model: CostModel,
        division: Division,
    ) -> None:
        self._network = network
        self._primitives = primitives
        self._model = model
        self._division: Division = division
        alone = max(WINDOWS_AT_ONCE) if network.window else 1
        most_items = alone if network.is_tiled else network.total_pooling.volume
        self._options = StepOptions(primitives, model, division, most_items)
        self._choose: Chooser = undominated_within
        self._latest: tuple[Partition, list[tuple[Segments, list[Slot]]]] | None = None

    def among(self, primitives: Collection[Primitive]) -> DeviceSearch:
        """Return the search among some of the primitives."""
        some = [primitive for primitive in self._primitives if primitive in primitives]
        other = DeviceSearch(self._network, some, self._model, self._division)
        other._choose = self._choose
        other.bounds = self.bounds  # a bound for all candidates is a bound for some of them
        return other

    def dividing(self, division: Division) -> DeviceSearch:
        """Return the search with batches in pieces of other sizes."""
        bounds = self.bounds  # they hold for every division
        other = copy(self)
        other._division, other._options = division, self._options.dividing(division)
        other._latest = None
        other.bounds = bounds
        return other

    def choosing(self, choose: Chooser) -> DeviceSearch:
        """Return the search with another function that chooses steps. It shares what is known."""
        other = copy(self)
        other._choose = choose
        return other

    def __len__(self) -> int:
        """Return the number of different calls priced so far. Pricing dominates a search's time."""
        return len(self._options)

    @cached_property
    def bounds(self) -> LeastSeconds:
        """The lower bounds on the time of each layer."""
        maps = self._network.operations
        fusible: list[Operation] = [it.operation for it in self._fusible]
        for it in fusions(self._network).values() if self._parts else ():
            features = maps[it.layers[0]][1]
            ways = packed_fusion(self._network, it, self._parts)
            fusible += [each for each in ways if self._options.computes(each, features)]
        return Bounds(self._network, self._options, fusible, parts=self._parts)

    @cached_property
    def _parts(self) -> int:
        """The parts of packed numbers, as few as the accuracy allows.

        It is 0 if no values may be packed between the layers, as in networks that are not tiled.
        """
        packed = (it.packed_parts for it in self._primitives if isinstance(it, TakesPacked))
        return min(packed, default=0) if self._network.is_tiled else 0

    @property
    def value_bytes(self) -> int:
        """The least bytes of a value between layers, packed or not."""
        return min(FLOAT_BYTES, self._parts * PART_BYTES or FLOAT_BYTES)

    def bounds_among(self, primitives: Collection[Primitive]) -> LeastSeconds:
        """Return lower bounds on the time of each layer by some of the primitives.

        They hold for values that are not packed.
        """
        names = {it.name for it in primitives}
        return Bounds(self._network, self._options, [], names)

    @cached_property
    def _fusible(self) -> tuple[Fusion, ...]:
        """The layers that some primitive computes as one step, if no value is packed."""
        maps = self._network.operations
        return tuple(
            it
            for it in fusions(self._network).values()
            if self._options.computes(it.operation, maps[it.layers[0]][1])
        )

    @property
    def _partition_bounds(self) -> PartitionBounds:
        """The lower bounds on the memory and the time of all layers of a partition."""
        return PartitionBounds(self._options, self._fusible, self._parts > 0, self.value_bytes)

    @property
    def _option_sets(self) -> tuple[StepOptions, ...]:
        """The options with whole batches, and then those in pieces.

        The time of whole batches bounds the search among pieces, so that it tries few.
        """
        whole = self._options.dividing("none")
        return (whole, self._options) if self._options.divides else (whole,)

    def fastest(
        self, partition: Partition, budget: MemoryBudget, job_time: JobTime, limit: float
    ) -> Candidate | None:
        """Return the candidate with the shortest job, if one fits and beats the limit.

        Args:
            partition: the layers.
            budget: the bytes that they may take.
            job_time: the time of the job for a load.
            limit: the seconds of the job to beat.
        """
        best, to_beat = None, SecondsToBeat(limit)
        for candidate in self._beating(partition, budget, job_time, to_beat, self._choose):
            best, to_beat.seconds = candidate, job_time.seconds(candidate.load)
        return best

    def undominated(
        self, partition: Partition, budget: MemoryBudget, job_time: JobTime, limit: float
    ) -> list[Candidate]:
        """Return candidates that fit and beat the limit.

        Candidates that others beat in time and in all bytes are left out. The arguments are the
        same as for ``fastest``.
        """
        to_beat = SecondsToBeat(limit)
        return list(self._beating(partition, budget, job_time, to_beat, undominated_within))

    def _beating(
        self,
        partition: Partition,
        budget: MemoryBudget,
        job_time: JobTime,
        to_beat: SecondsToBeat,
        choose: Chooser,
    ) -> Iterator[Candidate]:
        """Yield candidates that fit and beat the seconds at that time, which the caller may lower.

        Args:
            partition: the layers.
            budget: the bytes that they may take.
            job_time: the time of the job for a load.
            to_beat: the seconds of the job to beat.
            choose: the function that chooses steps.
        """
        limit, least_of = to_beat.seconds, self._partition_bounds
        working, most = least_of.working(partition), budget(partition.input_shape._replace(n=1))
        if working > most or (limit == inf and not least_of.may_fit(partition, most)):
            return
        layers_limit = job_time.layers_within(limit, working)
        layers = least_of.seconds(partition, most, layers_limit)
        if not job_time.seconds(Load(sum(layers.values()), 0, working)) < limit:
            return
        bounds = SecondsLimit(
            ROUNDED * layers_limit, layers, self.bounds.of_step, partition.least_runs
        )
        segmented = [
            (segments, allowed, bare, least)
            for segments, bare, allowed in self._segmentations(partition, budget, bounds)
            for least in ([bounds.of_runs(slot.options[0], slot.runs) for slot in bare],)
            if sum(least) < job_time.layers_within(to_beat.seconds, least_peak(bare))
        ]
        for options, (segments, allowed, bare, least) in product(self._option_sets, segmented):
            if options.divides and not _has_batches(segments):
                continue  # no pieces, so it was looked at before
            layers_limit = job_time.layers_within(to_beat.seconds, least_peak(bare))
            slots = slots_that_fit(bare, least, options, allowed, layers_limit)
            if not slots:
                continue
            layers_limit = job_time.layers_within(to_beat.seconds, least_peak(slots))
            for choice in choose(slots, allowed, layers_limit, job_time.byte_seconds):
                candidate = Candidate(segments, choice)
                seconds = job_time.seconds(candidate.load)
                if seconds < to_beat.seconds and _has_place(candidate, partition, allowed):
                    yield candidate

    def smallest(self, partition: Partition, budget: MemoryBudget) -> Candidate | None:
        """Return the candidate that leaves the most of its budget, or lacks the least.

        Args:
            partition: the layers.
            budget: the bytes that they may take.
        """
        best, most = None, -inf
        whole, *divided = self._option_sets
        for segments, bare, _ in self._segmentations(partition, lambda _: inf):
            options = divided[0] if divided and _has_batches(segments) else whole
            slots = [
                replace(
                    slot,
                    options=options(
                        slot.options[0], in_place=slot.in_place, copied_bytes=slot.copied_bytes
                    ),
                )
                for slot in bare
            ]
            if all(slot.options for slot in slots):
                choice = least_memory(slots)
                first_input = partition.input_shape._replace(n=segments[0].sub_batch)
                left = budget(first_input) - choice.resident - choice.peak
                if left > most:
                    best, most = Candidate(segments, choice), left
        return best

    def _segmentations(
        self,
        partition: Partition,
        budget: MemoryBudget,
        limit: SecondsLimit = NO_SECONDS_LIMIT,
    ) -> Iterator[tuple[Segments, list[Slot], float]]:
        """Yield segmentations of the layers that may keep a limit.

        Each has its bare slots, and the bytes that they may take. The first segment may take a few
        of the input's fragments at a time.
        """
        if partition.storage:
            allowed = budget(partition.input_shape)
            for segmentation, slots in self._of_block(partition, partition.storage):
                yield segmentation, slots, allowed
            return
        handed = partition.handed.nbytes if partition.handed else 0
        batch = partition.input_shape.n
        for some in (n for n in range(batch, 0, -1) if batch % n == 0):
            first = partition.input_shape._replace(n=some)
            allowed = budget(first)
            for segments in segmentations(
                partition.nodes,
                first,
                allowed - handed,
                self._fusible,
                partition.device,
                in_place=bool(handed),
                runs=batch // some,
                limit=limit,
                swept=partition.swept,
            ):
                yield segments, self._bare_slots(segments, partition), allowed

    def _of_block(
        self, partition: Partition, storage: BlockStorage
    ) -> list[tuple[Segments, list[Slot]]]:
        """Return the segmentations of a block, each with its bare slots.

        They come in the order of their bounds, so that what the fastest one takes rules others out.
        Blocks of windows share their storage, whatever the patch is. So the latest ones are kept.
        """
        if self._latest:
            known, slots = self._latest
            if known.storage is storage and known.nodes == partition.nodes:
                return slots
        segments = tiled_segments(
            partition.nodes,
            storage,
            self._fusible,
            self._options,
            partition.device,
            parts=self._parts,
            fusible_packed=fusions(self._network).values(),
        )
        ordered = sorted(segments, key=lambda it: sum(map(self.bounds.of_step, it.steps)))
        slots = [((it,), self._bare_slots((it,), partition)) for it in ordered]
        self._latest = partition, slots
        return slots

    def _bare_slots(self, segments: Segments, partition: Partition) -> list[Slot]:
        """Return the slots of the steps, each with its bare step as the only option."""
        hands_on = partition.handed is not None
        storage, swept = partition.storage, partition.swept
        part = DevicePart(segments, partition.input_shape, hands_on, storage, swept)
        return [
            Slot(
                (step,),
                n,
                held,
                part.writes_in_place(step),
                part.copied_bytes(step),
                partition.on_gpu,
            )
            for (step, held), (_, n) in zip(part.held_beside(), part.step_runs(), strict=True)
        ]


def _has_batches(segments: Segments) -> bool:
    """Return whether a step of the segments computes a batch that can be divided.

    The windows that are computed at once are not divided: a packed value has one scale for all.
    """
    divisible = (segment for segment in segments if not segment.is_tiled)
    return any(step.shape_in.n > 1 for segment in divisible for step in segment.steps)


def _has_place(candidate: Candidate, partition: Partition, allowed: float) -> bool:
    """Return whether a candidate fits with the gaps that its arrays leave between them.

    The arrays of nested segments leave none.
    """
    if partition.storage is None:
        return True
    storage, swept = partition.storage, partition.swept
    part = DevicePart(candidate.decided, partition.input_shape, storage=storage, swept=swept)
    return candidate.choice.resident + part.working_peak()[0] <= allowed
