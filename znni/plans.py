"""Plans as values: made by the planner, run by the engine, stored as JSON, printed as a table.

A plan computes one patch at a time. Its segments nest, depth first: each takes its input in
sub-batches, runs its steps on one, and hands the result to the next segment before it takes
the next. After a pool the fragments are independent, so that the deep, wide part of a network
need only ever hold a few of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

from pydantic import TypeAdapter, ValidationError

from znni.cost import Cost
from znni.errors import PLAN_AGAIN, InvalidInput
from znni.machine import Device, DeviceKind, Machine
from znni.network import Conv, Layer, Network, Operation, Pool, PooledConv
from znni.plan_memory import PlanMemory
from znni.plan_table import plan_table
from znni.plan_time import PlanTime
from znni.shapes import Shape5, Vec3


@dataclass(frozen=True)
class Step:
    """One layer by one primitive, or a convolution with the pooling after it.

    Attributes:
        operation: what is computed.
        primitive: its name in the catalogue.
        shape_in: of one call's input.
        shape_out: of its output.
        cost: of one call.
        seconds: predicted for one call.
        error: of the prediction, root mean square, as a share of the seconds.
    """

    operation: Operation
    primitive: str
    shape_in: Shape5
    shape_out: Shape5
    cost: Cost
    seconds: float
    error: float

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the network that it computes, in order."""
        if isinstance(self.operation, PooledConv):
            return self.operation.conv, self.operation.pool
        return (self.operation,)

    @property
    def conv(self) -> Conv | None:
        """The convolution that it computes, alone or with a pooling."""
        first = self.layers[0]
        return first if isinstance(first, Conv) else None

    @property
    def pool(self) -> Pool | None:
        """The pooling that it computes, alone or after a convolution."""
        last = self.layers[-1]
        return last if isinstance(last, Pool) else None

    @property
    def pools_plainly(self) -> bool:
        """Whether it pools and gives one fragment, not all of them."""
        return self.pool is not None and self.shape_out.n == self.shape_in.n


@dataclass(frozen=True)
class Segment:
    """A run of layers on one device, for a few items of its input batch at a time.

    A plain pool within it gives one of its window's fragments; the segment then runs once for
    each, on its input shifted by one voxel (a pool at the head of a segment thus yields single
    fragments of a stored input).

    Attributes:
        device: ``cpu`` or ``gpu``.
        sub_batch: items of the input batch taken at a time; divides the batch.
        steps: in order.
    """

    device: DeviceKind
    sub_batch: int
    steps: tuple[Step, ...]

    @property
    def plain_windows(self) -> tuple[Vec3, ...]:
        """The windows of the pools that give one fragment a run."""
        return tuple(step.pool.window for step in self.steps if step.pool and step.pools_plainly)

    @property
    def shifts(self) -> int:
        """How often the segment runs on one sub-batch: once per combination of pool offsets."""
        return prod(window.volume for window in self.plain_windows)

    def shift(self, chosen: tuple[Vec3, ...]) -> Vec3:
        """Where in its stored input the segment starts, for an offset of each plain pool."""
        start, stride, remaining = Vec3(0, 0, 0), Vec3(1, 1, 1), iter(chosen)
        for step in self.steps:
            if step.pool:
                if step.pools_plainly:
                    start += stride * next(remaining)
                stride *= step.pool.window
        return start


@dataclass(frozen=True)
class Plan:
    """How a network is run over a volume.

    Attributes:
        network: what is computed.
        machine: what it was planned for.
        output: extents of the output wanted.
        patch: output voxels of one patch; the last along an axis may overlap its neighbour.
        segments: the layers, first to last.
        memory: peak bytes on the host.
        time: predicted.
        costs: where the predicted times come from.
        gpu_memory: peak bytes on the GPU, if the layers run there.
    """

    network: Network
    machine: Machine
    output: Vec3
    patch: Vec3
    segments: tuple[Segment, ...]
    memory: PlanMemory
    time: PlanTime
    costs: str
    gpu_memory: PlanMemory | None = None

    @property
    def device(self) -> Device:
        """Where the layers run: the host, or its first GPU."""
        return self.machine.host if self.segments[0].device == "cpu" else self.machine.gpus[0]

    @property
    def device_memory(self) -> PlanMemory:
        """Peak bytes on the device where the layers run."""
        return self.gpu_memory or self.memory

    def memory_on(self, device: DeviceKind) -> PlanMemory:
        """Peak bytes on the host, or on the GPU if there are layers there."""
        return self.gpu_memory if device == "gpu" and self.gpu_memory else self.memory

    @property
    def input_patch(self) -> Vec3:
        """Input voxels of one patch."""
        return self.patch + self.network.field_of_view - 1

    @property
    def input_shape(self) -> Shape5:
        """The shape of one patch's input."""
        return Shape5.of(1, self.network.in_features, self.input_patch)

    @property
    def patches(self) -> int:
        """Patches that cover the output."""
        return self.output.ceil_div(self.patch).volume

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them, first to last."""
        return tuple(step for segment in self.segments for step in segment.steps)

    def runs(self) -> Iterator[tuple[Segment, int]]:
        """Each segment with the number of times that it runs for one patch."""
        return segment_runs(self.segments)

    @property
    def patch_seconds(self) -> float:
        """Predicted time of one patch's layers."""
        return sum(n * step.seconds for segment, n in self.runs() for step in segment.steps)

    @property
    def seconds(self) -> float:
        """Predicted time of the whole job, from building the primitives to the last block."""
        return self.time.total(self.patches)

    @property
    def error(self) -> float:
        """To be expected of the predicted time, as a share of it.

        Errors of the steps are added up: most have one cause, such as the clock or the memory.
        What is not of the steps is taken to be off by as much.
        """
        steps = [(n * step.seconds, step.error) for part, n in self.runs() for step in part.steps]
        return sum(seconds * error for seconds, error in steps) / self.patch_seconds

    @property
    def voxels_per_second(self) -> float:
        """Predicted output voxels per second of the whole job."""
        return self.output.volume / self.seconds

    @property
    def wasted_work(self) -> float:
        """Share of the multiplications spent on patch borders, overlap and repetition, from 0 to 1.

        Against one pass over an endless volume, where each layer computes every position once. A
        convolution within a segment that runs for every offset of a pool is repeated.
        """
        dense = computed = 0.0
        for segment, n in self.runs():
            for step in segment.steps:
                if step.conv:
                    positions = step.shape_in.size - step.conv.kernel + 1
                    computed += n * step.shape_in.n * positions.volume * step.conv.parameters
                    dense += step.conv.parameters
        return 1 - dense * self.output.volume / (computed * self.patches)

    def __str__(self) -> str:
        return plan_table(self)

    def to_json(self) -> str:
        """The plan as JSON text, for ``from_json``."""
        return _adapter().dump_json(self, indent=1).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Plan:
        """Read back a plan.

        Raises:
            InvalidInput: not a plan's JSON, or one whose shapes do not chain.
        """
        try:
            plan = _adapter().validate_json(text)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"])) or "the top"
            raise InvalidInput(
                f"not a plan of this version of znni: wrong or missing at {where}; {PLAN_AGAIN}"
            ) from None
        except InvalidInput as error:
            raise InvalidInput(f"not a plan: {error}; {PLAN_AGAIN}") from None
        layers = tuple(layer for step in plan.steps for layer in step.layers)
        devices = {segment.device for segment in plan.segments}
        on_gpu = bool(plan.machine.gpus) and plan.gpu_memory is not None
        sizes = (
            *plan.output,
            *plan.patch,
            *(segment.sub_batch for segment in plan.segments),
            plan.machine.host.threads,
        )
        timed = plan.time.valid and all(0 < step.seconds < inf for step in plan.steps)
        for sound, wrong in (
            (
                all(segment.steps for segment in plan.segments) and layers == plan.network.layers,
                "its steps are not its network's layers",
            ),
            (
                len(devices) == 1 and ("gpu" in devices) == on_gpu,
                "it does not say which device its layers run on",
            ),
            (min(sizes) >= 1 and timed, "its sizes and its time are not all positive"),
            (
                all(0 <= step.error < inf for step in plan.steps),
                "the error of its time is negative or not a number",
            ),
        ):
            if not sound:
                raise InvalidInput(f"not a plan: {wrong}; {PLAN_AGAIN}")
        return plan


def segment_runs(segments: tuple[Segment, ...]) -> Iterator[tuple[Segment, int]]:
    """Each segment with the number of times that it runs when the first one's input is one item."""
    count, batch = 1, 1
    for segment in segments:
        count *= batch // segment.sub_batch * segment.shifts
        batch = segment.steps[-1].shape_out.n
        yield segment, count


def held_beside(segments: tuple[Segment, ...], patch_input: Shape5) -> Iterator[tuple[Step, int]]:
    """Each step with the bytes alive during it beside its own working memory.

    A segment's input is held while the segments after it run. A step's ``working`` counts its
    input, and that of a segment's first step is a view of what is held: it is taken off.
    """
    held, stored = 0, patch_input.nbytes
    for segment in segments:
        held += stored
        for index, step in enumerate(segment.steps):
            viewed = step.shape_in.nbytes if index == 0 else 0
            yield step, held - viewed
        stored = segment.steps[-1].shape_out.nbytes


def working_peak(segments: tuple[Segment, ...], patch_input: Shape5) -> tuple[int, Step]:
    """Peak bytes of the layers' arrays and workspace, and the step where it occurs."""
    live = [(held + s.cost.memory.working, s) for s, held in held_beside(segments, patch_input)]
    return max(live, key=lambda item: item[0])


def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)
