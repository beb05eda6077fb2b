"""Sums, products, maxima and affine maps of packed values.

A depthwise convolution of one tap is an affine map too. Networks have such ones to pad with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.packed_arrays import PackedArray, in_whole_groups, packed_bytes
from znni.network.layers import (
    Activation,
    Add,
    Affine,
    Conv,
    Maximum,
    Multiply,
    Operation,
    SummedConv,
    on_float32,
)
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applying, convolution_of, joined
from znni.primitives.gpu.common.activation import sloped_activation_source
from znni.primitives.gpu.common.kernels import definitions
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES, TensorFormat
from znni.primitives.gpu.common.voxels import THREADS
from znni.primitives.gpu.direct_tensor.launch import ranges_source
from znni.primitives.gpu.packed.base import GpuPackedPass, common_source, groups_of, strided

# A factor, a shift and a slope for each map.
NUMBERS = 3

# Voxels that a thread loads before it stores them, and blocks that a multiprocessor has room for.
TOGETHER = 4
BLOCKS = {1: 4, 2: 2}  # by the parts of a number

# Blocks of a launch, unless planes have more. Each has some planes, because it takes long to begin.
ENOUGH_BLOCKS = 2**12


@dataclass(frozen=True)
class GpuPackedPointwise(GpuPackedPass):
    """The base of sums, products and maxima of two packed values, and of affine maps."""

    version: ClassVar[int] = 5
    combination: ClassVar[str]
    resident: ClassVar[int] = NUMBERS * FLOAT_BYTES

    def output_of(self, layer: Any, shape: Shape5) -> Shape5 | None:
        """Decline softmax, and values that spread."""
        if layer.activation == "softmax" or (isinstance(layer, Multiply) and layer.spreads):
            return None
        if isinstance(layer, Multiply) and layer.is_gate:
            return None
        return joined(layer, shape, type(layer))

    def prepare(self, layer: Any, out: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and bring factors, shifts and slopes to the GPU."""
        each: Any = convolution_of(layer)
        adds = isinstance(layer, SummedConv)
        kernel = pointwise_kernel(self.combination, each.activation, self.numbers, adds=adds)
        whole = np.zeros((NUMBERS, in_whole_groups(out.f)), np.float32)
        numbers = whole[:, : out.f]
        numbers[0], numbers[2] = 1, each.slope
        if isinstance(each, Affine | Conv):
            given = conv_weights(each, weights)
            numbers[0], numbers[1] = given.weight.ravel(), given.bias
            if given.slope is not None:
                numbers[2] = given.slope
        factor, shift, steepest = map(float, np.abs(numbers).max(axis=1))
        bound = largest_bound(each.activation, factor, shift, steepest)
        constants = cupy().asarray(whole)

        def run(first: PackedArray, second: PackedArray | None = None) -> Any:
            y = new_device_output(out)
            other = first if second is None else second
            given = *strided(first), *strided(other), *constants, *bound
            launch(kernel, groups_of(out), *given, *strided(y), np.int32(0))
            return y

        return run


@dataclass(frozen=True)
class GpuPackedAddition(GpuPackedPointwise):
    """Sums of two packed values."""

    kind: ClassVar[type[Operation]] = Add
    family: ClassVar[str] = "gpu_packed_addition"
    combination: ClassVar[str] = "ADD"


@dataclass(frozen=True)
class GpuPackedMultiplication(GpuPackedPointwise):
    """Products of two packed values."""

    kind: ClassVar[type[Operation]] = Multiply
    family: ClassVar[str] = "gpu_packed_multiplication"
    combination: ClassVar[str] = "MULTIPLY"


@dataclass(frozen=True)
class GpuPackedMaximum(GpuPackedPointwise):
    """Maxima of two packed values."""

    kind: ClassVar[type[Operation]] = Maximum
    family: ClassVar[str] = "gpu_packed_maximum"
    combination: ClassVar[str] = "MAXIMUM"


@dataclass(frozen=True)
class GpuPackedAffine(GpuPackedPointwise):
    """A factor and a shift for each map of packed values.

    It may add to a packed value in the output's memory.
    """

    kind: ClassVar[tuple[type[Operation], ...]] = (Affine, Conv, SummedConv)
    family: ClassVar[str] = "gpu_packed_affine"
    combination: ClassVar[str] = "SCALE"

    def output_of(self, layer: Any, shape: Shape5) -> Shape5 | None:
        """Decline softmax, convolutions with neighbours, and sums whose activation may enlarge."""
        each: Any = convolution_of(layer)
        if each.activation == "softmax" or each.out_features != shape.f:
            return None
        if isinstance(each, Conv):
            alone = each.kernel.volume == 1 and each.groups == each.in_features == shape.f
            if not alone or each != each.local or each.stride.volume > 1:
                return None
        if isinstance(layer, SummedConv) and each.activation not in ("identity", "relu"):
            return None
        return shape

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass, which also reads the value that it adds to."""
        cost = super().cost(layer, shape)
        out = applying(self.out_shape(layer, shape), self, layer, shape)
        adds = isinstance(on_float32(layer), SummedConv)
        return cost.plus(0.0, 1.0, packed_bytes(out, self.numbers.parts) if adds else 0)


def pointwise_source(activation: Activation, numbers: TensorFormat) -> str:
    """Return the CUDA source of ``pointwise``, compiled with ``-DOPERATION=``."""
    values = {"THREADS": THREADS, "TOGETHER": TOGETHER, "BLOCKS": BLOCKS[numbers.parts]}
    return (
        definitions(values)
        + common_source(numbers)
        + ranges_source(numbers)
        + sloped_activation_source(activation, rounded=True)
        + source_beside(__file__, "pointwise.cu")
    )


def pointwise_kernel(
    combination: str, activation: Activation, numbers: TensorFormat, *, adds: bool = False
) -> Any:
    """Return the kernel ``pointwise`` for an operation, which may add the second input then."""
    options = f"-DOPERATION={combination}", f"-DADDS={int(adds)}"
    return compiled(pointwise_source(activation, numbers), options).get_function("pointwise")


def launch(kernel: Any, out: Shape5, *arguments: Any) -> None:
    """Launch ``pointwise``; the division of the output among blocks and its extents come last.

    Args:
        out: the shape of the output, whose maps are groups.
        arguments: all others.
    """
    columns, runs = -(-out.y * out.x // THREADS), -(-out.z // TOGETHER)
    of_planes = out.n * out.f * columns
    each = -(-runs // max(1, min(runs, ENOUGH_BLOCKS // of_planes)))
    shares = -(-runs // each)
    numbers = map(np.int32, (columns, shares, *out[1:]))
    kernel((of_planes * shares,), (THREADS,), (*arguments, *numbers))


def largest_bound(
    activation: Activation, factor: float, shift: float, steepest: float
) -> tuple[np.float32, np.float32]:
    """Return two numbers that bound a layer's outputs: one times the largest input plus the other.

    Args:
        activation: the activation. Most make no number larger.
        factor: the largest factor of a map.
        shift: the largest shift of a map.
        steepest: the largest slope of a map, for negative numbers.
    """
    if activation == "sigmoid":
        return np.float32(0), np.float32(1)
    slope = max(1.0, steepest) if activation in ("leaky_relu", "prelu") else 1.0
    return np.float32(slope * factor), np.float32(slope * shift)
