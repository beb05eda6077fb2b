"""Activations in CUDA: a function that kernels call as they store, and a softmax after them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda_kernels import compiled, source_beside
from znni.network.activations import LEAKY_SLOPE, TRAITS, Activation, increases
from znni.network.layers import Conv, Operation, PooledConv
from znni.plans.cost import Cost
from znni.primitives.gpu.common.kernels import common_code

# The activation of a sum `value`. `larger` returns the larger of two numbers, or NaN if one is NaN.
# Softmax needs all maps of a voxel, so it is a pass of its own after the convolution.
EXPRESSIONS: dict[Activation, str] = {
    "identity": "value",
    "softmax": "value",
    "relu": "larger(value, 0.0f)",
    "leaky_relu": "value > 0.0f ? value : 0.01f * value",
    "elu": "value > 0.0f ? value : expm1f(value)",
    "sigmoid": "1.0f / (1.0f + expf(-value))",
    "tanh": "tanhf(value)",
    "gelu": "0.5f * value * (1.0f + erff(value * 0.70710678118654752f))",
    "gelu_tanh": (
        "0.5f * value * (1.0f + tanhf(value * (0.79788456f + 0.035677408f * value * value)))"
    ),
}

# Activations in kernels that know a slope for each map. There `leaky_relu` may have any slope.
SLOPED_EXPRESSIONS: dict[Activation, str] = EXPRESSIONS | {
    "leaky_relu": "value > 0.0f ? value : slope * value",
    "prelu": "value > 0.0f ? value : slope * value",
}

# Faster expressions for numbers that are stored as float16. Their error is below 1e-5 of the
# largest number. On an H100, `expm1f` took over a third of the time of a convolution, and branches
# for each number a quarter.
ROUNDED_EXPRESSIONS: dict[Activation, str] = {
    "elu": "fast_elu(value)",
    "gelu": "fast_gelu(value)",
    "gelu_tanh": "fast_gelu_tanh(value)",
}

# Cost of softmax for one value: it reads three times and writes once, with two exponentials.
SOFTMAX_FLOPS = 14
SOFTMAX_PASSES = 4
SOFTMAX_EFFICIENCY = 0.1

THREADS = 256


def has_source(layer: Operation) -> bool:
    """Return whether kernels know the activation of a layer, with its slope."""
    conv = layer.conv if isinstance(layer, PooledConv) else layer
    if not isinstance(conv, Conv):
        return True
    if conv is not layer and not increases(conv.activation, conv.slope):
        return False  # pooling cannot come before it
    known = conv.activation != "leaky_relu" or conv.slope == LEAKY_SLOPE
    return known and conv.activation in EXPRESSIONS


def activation_source(activation: Activation, *, rounded: bool = False) -> str:
    """Return the CUDA functions ``larger``, ``float activation(float)`` and ``scaled_activation``.

    The last one takes a sum and a scale, and returns the activation times the scale. If a positive
    factor passes the activation, the sum was multiplied by the scale before (``KEEPS_UNIT``).

    Args:
        rounded: whether the result is rounded to float16.
    """
    known = EXPRESSIONS | ROUNDED_EXPRESSIONS if rounded else EXPRESSIONS
    keeps_unit = str(TRAITS[activation].kind == "lines").lower()
    return f"""{common_code("larger.cuh")}{common_code("fast_activations.cuh") if rounded else ""}
constexpr bool KEEPS_UNIT = {keeps_unit};
__device__ __forceinline__ float activation(float value) {{
    return {known[activation]};
}}
__device__ __forceinline__ float scaled_activation(float sum, float scale) {{
    return KEEPS_UNIT ? activation(sum) : activation(sum) * scale;
}}
"""


def sloped_activation_source(activation: Activation, *, rounded: bool = False) -> str:
    """Return the CUDA functions ``larger`` and ``float activated(float value, float slope)``.

    Args:
        rounded: whether the result is rounded to float16.
    """
    known = SLOPED_EXPRESSIONS | ROUNDED_EXPRESSIONS if rounded else SLOPED_EXPRESSIONS
    return f"""{common_code("larger.cuh")}{common_code("fast_activations.cuh") if rounded else ""}
__device__ __forceinline__ float activated(float value, float slope) {{
    return {known[activation]};
}}
"""


def with_softmax(cost: Cost, activation: Activation, out: Shape5) -> Cost:
    """Add the pass over a convolution's output to its cost, if its activation is softmax.

    The pass needs an output without gaps.
    """
    if activation != "softmax":
        return cost
    passes = SOFTMAX_PASSES * out.nbytes
    more = cost.plus(out.elements * SOFTMAX_FLOPS, SOFTMAX_EFFICIENCY, passes)
    return replace(more, writes_views=False)


def activate_over_maps(y: Any, activation: Activation) -> None:
    """Apply softmax in place, if it is the activation; kernels have applied all others.

    Args:
        y: a ``cupy.ndarray`` of float32 (n, f, z, y, x), C-contiguous.
        activation: of the layer.
    """
    if activation != "softmax":
        return
    n, maps = y.shape[:2]
    voxels = y.size // (n * maps)
    blocks = -(-n * voxels // THREADS)
    _softmax()((blocks,), (THREADS,), (y, np.int64(n * voxels), np.int64(voxels), np.int32(maps)))


def softmax_source() -> str:
    """Return the CUDA source of the kernel ``softmax``."""
    return source_beside(__file__, "softmax.cu")


@cache
def _softmax() -> Any:
    return compiled(softmax_source()).get_function("softmax")
