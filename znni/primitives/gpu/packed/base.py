"""The base of layers that take and make packed values in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from znni.core.shapes import Shape5
from znni.machine.arena import given_output, output_into
from znni.machine.cuda_kernels import source_beside
from znni.machine.packed_arrays import (
    GROUP,
    RECORD_BYTES,
    PackedArray,
    groups_for,
    packed_array,
    packed_bytes,
    strides_in_voxels,
)
from znni.network.layers import Operation, PackedLayer, on_float32
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applying
from znni.primitives.gpu.common.base import AnyWork, NamedPrimitive, ShapedPrimitive
from znni.primitives.gpu.common.kernels import common_code, definitions
from znni.primitives.gpu.common.number_formats import FLOAT16, TensorFormat
from znni.primitives.gpu.common.voxels import EFFICIENCY, countable

# Operations for a number: two conversions, and what the layer computes.
FLOPS = 4


@dataclass(frozen=True)
class PackedPrimitive(NamedPrimitive):
    """A primitive of packed layers, in the format of the packed values."""

    numbers: TensorFormat = FLOAT16

    @property
    def packed_parts(self) -> int:
        """The parts of the packed numbers."""
        return self.numbers.parts


@dataclass(frozen=True)
class ShapedPackedPrimitive(PackedPrimitive, ShapedPrimitive[AnyWork]):
    """A primitive of packed layers that a value describes: its work."""


@dataclass(frozen=True)
class GpuPackedPass(PackedPrimitive):
    """The base of layers that take and make packed values voxel by voxel, in one pass."""

    kind: ClassVar[type[Operation] | tuple[type[Operation], ...]]
    takes_sums: ClassVar[bool] = False  # sums of its input's maps
    may_leave: ClassVar[bool] = False  # whether it may leave its numbers to the layer after it
    resident: ClassVar[int] = 0  # bytes for each map

    def output_of(self, layer: Any, shape: Shape5) -> Shape5 | None:
        """Return the shape of the output of a layer of its kind, or None if it declines."""
        raise NotImplementedError

    def flops(self, layer: Any) -> float:  # noqa: ARG002 - most layers have as many
        """Return the operations for a number of the output."""
        return FLOPS

    def prepare(self, layer: Any, out: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and return what runs it. It writes into a given packed output."""
        raise NotImplementedError

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for a packed layer of its kind."""
        if not isinstance(layer, PackedLayer) or not isinstance(layer.layer, self.kind):
            return None
        if not layer.reads or not layer.writes or layer.parts != self.numbers.parts:
            return None
        if layer.sums and not self.takes_sums:
            return None
        if layer.norm or (layer.leaves and not self.may_leave):
            return None
        out = self.output_of(layer.layer, shape)
        return out if out and countable(out) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over packed arrays."""
        out = applying(self.out_shape(layer, shape), self, layer, shape)
        moved = sum(packed_bytes(it, self.numbers.parts) for it in (shape, out))
        resident = groups_for(out.f) * (self.resident * GROUP + RECORD_BYTES)
        memory = Memory.beside(moved, 0, resident)
        flops = self.flops(on_float32(layer)) * out.elements
        return Cost(flops, moved, memory, EFFICIENCY, writes_views=True)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare all that can be done once."""
        out = applying(self.out_shape(layer, shape), self, layer, shape)
        return into_output(out, self.numbers.parts, self.prepare(on_float32(layer), out, weights))


def into_output(out: Shape5, parts: int, run: Callable[..., Any]) -> Run:
    """Return a run that makes a packed value in the output that is given, or in a new one.

    Args:
        out: the shape of the value.
        parts: the parts of its numbers.
        run: makes the value in the output that is given (``output_into``).
    """

    def into(*inputs: Any) -> Any:
        if given_output(out) is not None:
            return run(*inputs)
        with output_into(packed_array(out, parts)):
            return run(*inputs)

    return into


def groups_of(shape: Shape5) -> Shape5:
    """Return a shape whose maps are groups."""
    return shape._replace(f=groups_for(shape.f))


def strided(array: PackedArray) -> tuple[Any, ...]:
    """Return a packed array as a kernel takes it: voxels, strides in voxels, records.

    The stride of maps is that of groups, with all parts of their numbers.
    """
    return array.voxels, *strides_in_voxels(array), array.records


def records_source(numbers: TensorFormat) -> str:
    """Return CUDA functions for voxels of packed values and their records."""
    parts = definitions({"PARTS": numbers.parts})
    return parts + common_code("float16_pair.cuh") + source_beside(__file__, "records.cuh")


def common_source(numbers: TensorFormat) -> str:
    """Return the functions of ``records_source``, and the loop over the voxels of an output."""
    return common_code("voxels.cuh") + records_source(numbers)
