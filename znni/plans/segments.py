"""Steps and segments: what a plan consists of.

Segments nest, depth first: each takes its input in sub-batches, runs its steps on one, and hands
the result to the next segment before it takes the next. After a pool the fragments are
independent, so that the deep, wide part of a network need only ever hold a few of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import DeviceKind
from znni.network.network import Conv, Layer, Operation, Pool, PooledConv
from znni.plans.chosen import Chosen
from znni.plans.cost import Cost


@dataclass(frozen=True)
class Step:
    """One layer by one primitive, or a convolution with the pooling after it.

    Attributes:
        operation: what is computed.
        primitive: what computes it: a name in the catalogue, or a composition of several.
        shape_in: of one call's input.
        shape_out: of its output.
        cost: of one call.
        seconds: predicted for one call.
        error: of the prediction, root mean square, as a share of the seconds.
        takes: names of the values that it takes; none if only its price is asked.
    """

    operation: Operation
    primitive: Chosen
    shape_in: Shape5
    shape_out: Shape5
    cost: Cost
    seconds: float
    error: float
    takes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the network that it computes, in order."""
        if isinstance(self.operation, PooledConv):
            return self.operation.conv, self.operation.pool
        return (self.operation,)

    @property
    def gives(self) -> str:
        """The name of the value that it gives: that of its last layer."""
        return self.layers[-1].name

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

    @property
    def uses_gpu(self) -> bool:
        """Whether it runs on the host and computes on a GPU, where it takes what its cost says."""
        return self.cost.memory.gpu_working > 0

    def taken(self, *, in_place: bool = False) -> int:
        """Bytes of one call at its peak, its input and output counted.

        Args:
            in_place: the output is written into memory that is there from the beginning.
        """
        memory = self.cost.memory
        if in_place:
            return self.shape_in.nbytes + memory.workspace + self.shape_out.nbytes
        return memory.working


@dataclass(frozen=True)
class Alternative:
    """A step by another primitive, all else of its plan unchanged.

    Attributes:
        step: that one.
        memory: bytes that the plan would then take of the device where the step runs.
        allowed: bytes of that device.
    """

    step: Step
    memory: int
    allowed: int


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
    def dying(self) -> tuple[tuple[str, ...], ...]:
        """For each step, the values that no later step takes.

        The segment's input is not among them: it stays for the next sub-batch or offset. Nor is
        its output, which the next segment takes.
        """
        last_use = {name: index for index, step in enumerate(self.steps) for name in step.takes}
        last_use |= dict.fromkeys((self.steps[0].takes[0], self.steps[-1].gives), len(self.steps))
        return tuple(
            tuple(name for name in (*step.takes, step.gives) if last_use[name] == index)
            for index, step in enumerate(self.steps)
        )

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


def segment_runs(segments: tuple[Segment, ...], batch: int = 1) -> Iterator[tuple[Segment, int]]:
    """Each segment with the number of times that it runs.

    Args:
        segments: first to last.
        batch: items of the first one's input.
    """
    count = 1
    for segment in segments:
        count *= batch // segment.sub_batch * segment.shifts
        batch = segment.steps[-1].shape_out.n
        yield segment, count
