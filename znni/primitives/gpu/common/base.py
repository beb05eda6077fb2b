"""The base of GPU primitives: a subclass describes the work of a layer, the base does the rest.

A new primitive is a subclass of ``ShapedPrimitive`` with two methods. ``work`` returns the work of
a layer on inputs of one shape, as a value that knows its cost. ``prepare`` makes it ready to run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, NamedTuple, TypeVar

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import BoundedByItself, Run, applying
from znni.primitives.gpu.common.activation import has_source, with_softmax
from znni.primitives.gpu.common.number_formats import NumberFormat


class Pass(NamedTuple):
    """The work of one kernel in all of a call.

    Attributes:
        flops: operations; those of tensor cores count as often as they make them.
        bytes_moved: bytes to and from memory.
        on_tensor_cores: whether tensor cores do most of them.
    """

    flops: float
    bytes_moved: float
    on_tensor_cores: bool = False


@dataclass(frozen=True)
class Work(ABC):
    """The work of one layer on inputs of one shape.

    Attributes:
        shape: the shape of the input.
        out: the shape of the output.
    """

    shape: Shape5
    out: Shape5

    # Whether the kernels write an output with gaps.
    writes_views: ClassVar[bool] = False

    @property
    @abstractmethod
    def flops(self) -> float:
        """Operations of a call."""

    @property
    @abstractmethod
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that these sustain."""

    @property
    def array_bytes(self) -> int:
        """Bytes of input and output."""
        return self.shape.nbytes + self.out.nbytes

    @property
    def bytes_moved(self) -> float:
        """Bytes to and from memory: input and output, unless a subclass moves more."""
        return self.array_bytes

    @property
    def passes(self) -> dict[str, Pass]:
        """The work of each kernel, by the launcher's method; empty if a single one does all."""
        return {}

    @property
    def workspace_bytes(self) -> int:
        """Bytes that a call takes beside input and output."""
        return 0

    @property
    def resident_bytes(self) -> int:
        """Bytes that are kept between calls."""
        return 0

    @property
    def cost(self) -> Cost:
        """The cost of a call."""
        memory = Memory.beside(self.array_bytes, self.workspace_bytes, self.resident_bytes)
        return Cost(
            self.flops, self.bytes_moved, memory, self.efficiency, writes_views=self.writes_views
        )


@dataclass(frozen=True)
class ConvolutionWork(Work):
    """The work of a convolution, pooled at once or not.

    Attributes:
        conv: the convolution.
    """

    conv: Conv

    @property
    def cost(self) -> Cost:
        """The cost of a call, with the pass over the output that softmax needs."""
        return with_softmax(super().cost, self.conv.activation, self.out)


AnyWork = TypeVar("AnyWork", bound=Work)


@dataclass(frozen=True)
class NamedPrimitive:
    """A primitive of a GPU that has the name and the accuracy of its number format.

    Attributes:
        device: the GPU.
        numbers: the format of the numbers that it multiplies.
        family: the name of the primitive, without that of the format.
    """

    device: Device
    numbers: NumberFormat
    family: ClassVar[str]
    version: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """The name in the catalogue."""
        return f"{self.family}{self.numbers.suffix}"

    @property
    def accuracy(self) -> float:
        """The relative error that it promises."""
        return self.numbers.accuracy


@dataclass(frozen=True)
class ShapedPrimitive(NamedPrimitive, ABC, Generic[AnyWork]):
    """A primitive of a GPU that a value describes: its work.

    Attributes:
        is_steady: whether the work of a layer is always the same.
        takes_slopes: whether the kernels of a convolution take a slope for each map.
    """

    is_steady: ClassVar[bool] = True
    takes_slopes: ClassVar[bool] = False

    @abstractmethod
    def work(self, layer: Operation, shape: Shape5) -> AnyWork | None:
        """Return the work of a layer on inputs of a shape, or None if the primitive declines."""

    @abstractmethod
    def prepare(self, work: AnyWork, weights: ConvWeights | None) -> Run:
        """Compile the kernels, lay out the weights, and return what runs the layer."""

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the shape of the output, or None if the primitive declines."""
        work = self._known(layer, shape)
        return None if work is None else work.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost of a call."""
        return applying(self._known(layer, shape), self, layer, shape).cost

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare all that can be done once, and return what runs the layer."""
        return self.prepare(applying(self._known(layer, shape), self, layer, shape), weights)

    def _known(self, layer: Operation, shape: Shape5) -> AnyWork | None:
        """Return the work of a layer, or None if kernels do not know its activation."""
        for known, work in self._latest:
            if known == (layer, shape):
                return work
        found = self.work(layer, shape) if self.takes_slopes or has_source(layer) else None
        if self.is_steady:
            self._latest[:] = [((layer, shape), found)]
        return found

    @cached_property
    def _latest(self) -> list[tuple[tuple[Operation, Shape5], AnyWork | None]]:
        """The last layer and shape with their work: a search asks for a shape, and then a cost."""
        return []


@dataclass(frozen=True)
class PerItemPrimitive(BoundedByItself, ShapedPrimitive[AnyWork]):
    """A primitive of a GPU whose items never take less time each if they are fewer."""
