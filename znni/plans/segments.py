"""Steps and segments, of which a plan consists.

Segments nest, depth first. Each takes its input in sub-batches and runs its steps on one of them.
It hands the result to the next segment before it takes the next sub-batch. After a pool the
fragments are independent. So the deep, wide part of a network never needs to hold more than a few.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from znni.core.file_fields import alias
from znni.core.processors import DeviceKind
from znni.core.shapes import ONE, ZERO, Shape5, Vec3
from znni.network.layers import Conv, Layer, Operation, Pool, layers_of
from znni.plans.composition import Composition
from znni.plans.cost import Cost


@dataclass(frozen=True)
class Step:
    """One layer, or several as one operation, with its primitive.

    Attributes:
        operation: the operation to compute.
        primitive: a primitive's name in the catalogue, or a composition of several.
        shape_in: the input shape of one call; of the first layer, if there are several.
        shape_out: the output shape of one call.
        cost: the cost of one call.
        seconds: the predicted seconds of one call.
        error: the expected error of the seconds, root mean square, as a share of them.
        takes: the names of the values that it takes; empty if only its price is wanted.
    """

    operation: Operation
    primitive: Composition
    shape_in: Shape5
    shape_out: Shape5
    cost: Cost
    seconds: float
    error: float
    takes: tuple[str, ...] = ()

    @property
    def computation(self) -> Hashable:
        """The computation. It is equal for steps that differ only in cost and seconds."""
        return self.operation, self.primitive, self.shape_in, self.shape_out, self.takes

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the network that it computes, in order."""
        return layers_of(self.operation)

    @property
    def gives(self) -> str:
        """The name of the value that it gives, which is the name of its last layer."""
        return self.layers[-1].name

    @property
    def reads(self) -> tuple[tuple[str, str], ...]:
        """The layers that read the values that it takes, each with its value's name."""
        first, *others = self.layers
        later = [it.name for it in others for _ in range((it.arity or 1) - 1)]
        readers = [first.name] * (len(self.takes) - len(later)) + later
        return tuple(zip(readers, self.takes, strict=True))

    @property
    def conv(self) -> Conv | None:
        """The convolution that it computes, alone or with other layers after it."""
        first = self.layers[0]
        return first if isinstance(first, Conv) else None

    @property
    def pool(self) -> Pool | None:
        """The pooling that it computes, alone or after a convolution."""
        last = self.layers[-1]
        return last if isinstance(last, Pool) else None

    @property
    def pools_plainly(self) -> bool:
        """True if it pools and gives one fragment, not all of them."""
        return self.pool is not None and self.shape_out.n == self.shape_in.n

    @property
    def uses_gpu(self) -> bool:
        """True if it runs on the host and computes on a GPU. Its cost then has GPU bytes."""
        return self.cost.memory.gpu_working > 0

    @property
    def makes_output_late(self) -> bool:
        """True if its output begins to exist only when some of its workspace is gone.

        Its call then never takes input, output and the most workspace at the same time.
        """
        memory, arrays = self.cost.memory, self.shape_in.nbytes + self.shape_out.nbytes
        return max(arrays, memory.working) < arrays + memory.workspace

    def peak_bytes(self, *, in_place: bool = False) -> int:
        """Return the peak bytes of one call, with its input and output.

        Args:
            in_place: whether the output is written into memory that exists from the beginning.
        """
        memory = self.cost.memory
        if in_place:
            return self.shape_in.nbytes + memory.workspace + self.shape_out.nbytes
        return memory.working


@dataclass(frozen=True)
class Alternative:
    """A step with another primitive, while the rest of its plan stays the same.

    Attributes:
        step: the step with the other primitive.
        memory: the bytes that the plan would then take on the step's device.
        allowed: the bytes of that device that a plan may take.
    """

    step: Step
    memory: int
    allowed: int


@dataclass(frozen=True)
class Segment:
    """Consecutive layers on one device, for a few items of the input batch at a time.

    A plain pool in a segment gives one of its window's fragments. The segment then runs once for
    each fragment. Each run begins at that fragment's offset in the input. So a plain pool at the
    head of a segment yields single fragments of a stored input.

    Attributes:
        device: ``cpu`` or ``gpu``.
        sub_batch: the items of the input batch taken at a time, a divisor of the batch.
        steps: the steps in order.
        is_tiled: whether it computes a block of a tiled network. Its pools have one phase.
    """

    device: DeviceKind
    sub_batch: int
    steps: tuple[Step, ...]
    is_tiled: bool = field(default=False, metadata=alias("is_exact"))

    @property
    def computation(self) -> Hashable:
        """The computation. It is equal for segments whose steps compute the same."""
        steps = tuple(step.computation for step in self.steps)
        return self.device, self.sub_batch, steps, self.is_tiled

    @cached_property
    def plain_windows(self) -> tuple[Vec3, ...]:
        """The windows of the pools that give one fragment per run."""
        if self.is_tiled:
            return ()
        return tuple(step.pool.window for step in self.steps if step.pool and step.pools_plainly)

    @property
    def shifts(self) -> int:
        """The number of runs on one sub-batch: one for each combination of pool offsets."""
        return prod(window.volume for window in self.plain_windows)

    def shift(self, chosen: tuple[Vec3, ...]) -> Vec3:
        """Return where in its stored input the segment starts, for an offset of each plain pool."""
        start, stride, remaining = ZERO, ONE, iter(chosen)
        for step in self.steps:
            if step.pool and not self.is_tiled:
                if step.pools_plainly:
                    start += stride * next(remaining)
                stride *= step.pool.window
        return start


def segment_runs(segments: tuple[Segment, ...], batch: int = 1) -> Iterator[tuple[Segment, int]]:
    """Yield each segment with the number of times that it runs.

    Args:
        segments: the segments, first to last.
        batch: the items of the first segment's input.
    """
    count = 1
    for segment in segments:
        count *= batch // segment.sub_batch * segment.shifts
        batch = segment.steps[-1].shape_out.n
        yield segment, count
