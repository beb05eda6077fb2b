"""Voxels from the same voxels of one or two inputs: copies, joins and affine maps on a GPU."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.network.layers import Activation
from znni.network.weights import Float32
from znni.primitives.gpu.common.activation import sloped_activation_source
from znni.primitives.gpu.common.kernels import common_code
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.common.voxels import launch, strided

Combination: TypeAlias = Literal["COPY", "ADD", "MULTIPLY", "MAXIMUM", "SCALE"]

# Numbers that are kept for each map: a factor, a shift and a slope.
NUMBERS = 3


def source(activation: Activation) -> str:
    """Return the CUDA source of ``pointwise``, compiled with ``option``."""
    return (
        common_code("voxels.cuh")
        + sloped_activation_source(activation)
        + source_beside(__file__, "pointwise.cu")
    )


def option(operation: Combination) -> tuple[str, ...]:
    """Return the option of the compiler that sets the operation."""
    return (f"-DOPERATION={operation}",)


def resident_bytes(maps: int) -> int:
    """Return the bytes that a ``Pointwise`` keeps."""
    return NUMBERS * FLOAT_BYTES * maps


class Pointwise:
    """An operation at each voxel, on the current GPU.

    Args:
        maps: the maps of the output.
        activation: the function applied to the result.
        slope: the factor of ``leaky_relu`` or ``prelu`` for negative values, for all or each map.
        factors: the factor of each map.
        shifts: the shift of each map.
    """

    def __init__(
        self,
        operation: Combination,
        maps: int,
        activation: Activation,
        slope: float | Float32,
        factors: float | Float32 = 1.0,
        shifts: float | Float32 = 0.0,
    ) -> None:
        self._kernel = compiled(source(activation), option(operation)).get_function("pointwise")
        numbers = np.empty((NUMBERS, maps), np.float32)
        numbers[0], numbers[1], numbers[2] = factors, shifts, slope
        self._numbers = cupy().asarray(numbers)

    def __call__(self, y: Any, first: Any, second: Any = None, *, scaling: Any = None) -> None:
        """Compute an output.

        Args:
            y: the output (n, f, z, y, x), which may be the memory of the first input.
            first: the first input.
            second: the second input, which may have one map or one sample for all.
            scaling: factors and shifts (2, f) on the GPU, instead of those that were given before.
        """
        numbers = self._numbers if scaling is None else (*scaling, self._numbers[2])
        out = Shape5(*y.shape)
        other = first if second is None else second
        shared = [0 if extent == 1 else 1 for extent in other.shape]
        strides = [
            np.int64(stride // other.itemsize * used)
            for stride, used in zip(other.strides, shared, strict=True)
        ]
        launch(self._kernel, out, *strided(first), other, *strides, *numbers, *strided(y))
