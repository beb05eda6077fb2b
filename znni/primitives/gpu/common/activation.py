"""Activations in CUDA: as a function that kernels call as they store, and softmax after them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda_kernels import compiled, source_beside
from znni.network.network import Activation
from znni.plans.cost import Cost
from znni.primitives.gpu.common.larger import larger_source

# Of a sum `value`. The larger of two that keeps NaN is `larger`. Softmax needs all maps of a voxel,
# and follows once they are there.
EXPRESSIONS: dict[Activation, str] = {
    "identity": "value",
    "softmax": "value",
    "relu": "larger(value, 0.0f)",
    "leaky_relu": "value > 0.0f ? value : 0.01f * value",
    "elu": "value > 0.0f ? value : expm1f(value)",
    "sigmoid": "1.0f / (1.0f + expf(-value))",
    "tanh": "tanhf(value)",
}

# Softmax for a value: three passes, an exponential in two of them.
SOFTMAX_FLOPS = 14
SOFTMAX_PASSES = 4
SOFTMAX_EFFICIENCY = 0.1

THREADS = 256


def activation_source(activation: Activation) -> str:
    """CUDA functions ``float larger(float, float)`` and ``float activation(float)``."""
    return f"""{larger_source()}
__device__ __forceinline__ float activation(float value) {{
    return {EXPRESSIONS[activation]};
}}
"""


def with_softmax(cost: Cost, activation: Activation, out: Shape5) -> Cost:
    """The price of a convolution with the pass over its output that softmax is."""
    if activation != "softmax":
        return cost
    return cost.plus(out.elements * SOFTMAX_FLOPS, SOFTMAX_EFFICIENCY, SOFTMAX_PASSES * out.nbytes)


def activate_over_maps(y: Any, activation: Activation) -> None:
    """What is left of an activation once all maps are there: softmax, in place.

    Args:
        y: a ``cupy.ndarray`` of float32 (n, f, z, y, x), C-contiguous.
        activation: whichever; all others were applied to each value as it was stored.
    """
    if activation != "softmax":
        return
    n, maps = y.shape[:2]
    voxels = y.size // (n * maps)
    blocks = -(-n * voxels // THREADS)
    _softmax()((blocks,), (THREADS,), (y, np.int64(n * voxels), np.int64(voxels), np.int32(maps)))


def softmax_source() -> str:
    """The kernel's source."""
    return source_beside(__file__, "softmax.cu")


@cache
def _softmax() -> Any:
    return compiled(softmax_source()).get_function("softmax")
