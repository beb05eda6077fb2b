"""Bias and activation, applied while a convolution's result is still in cache."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from znni.network import Activation, Conv
from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.primitives.cpu.common.simd import LANES, whole_vectors
from znni.primitives.cpu.common.workers import Workers
from znni.weights import ConvWeights, Float32

# Codes for compiled kernels. Softmax needs all maps of a voxel: it adds the bias here, and
# ``softmax_over_maps`` follows once all maps are there.
CODES: dict[Activation, int] = {
    "identity": 0,
    "softmax": 0,
    "relu": 1,
    "leaky_relu": 2,
    "elu": 3,
    "sigmoid": 4,
    "tanh": 5,
}


def bias_and_floor(layer: Conv, weights: ConvWeights) -> tuple[Float32, Float32]:
    """What kernels on 16 maps take for max(value + bias, floor): biases of whole vectors, a vector.

    ``activate_further`` does the rest.
    """
    bias = np.zeros(whole_vectors(layer.out_features), np.float32)
    bias[: layer.out_features] = weights.bias
    return bias, np.full(LANES, 0 if layer.activation == "relu" else -np.inf, np.float32)


@numba_kernel
def activate(row: Float32, bias: np.float32, code: int) -> None:
    """Replace each value v of a row by activation(v + bias)."""
    one = np.float32(1)
    if code == 0:
        for i in range(row.size):
            row[i] += bias
    elif code == 1:
        for i in range(row.size):
            row[i] = max(row[i] + bias, np.float32(0))
    elif code == 2:
        for i in range(row.size):
            value = row[i] + bias
            row[i] = value if value > 0 else np.float32(0.01) * value
    elif code == 3:
        for i in range(row.size):
            value = row[i] + bias
            row[i] = value if value > 0 else np.float32(math.expm1(value))
    elif code == 4:
        for i in range(row.size):
            row[i] = one / (one + np.float32(math.exp(-(row[i] + bias))))
    else:
        for i in range(row.size):
            row[i] = np.float32(math.tanh(row[i] + bias))


@njit(nogil=True, cache=True)
def _softmax_slab(slab: Float32) -> None:
    """Softmax over the first axis of (f, y, x), in place, safe against overflow."""
    features, height, width = slab.shape
    for y in range(height):
        for x in range(width):
            top = slab[0, y, x]
            for f in range(1, features):
                top = max(top, slab[f, y, x])
            total = np.float32(0)
            for f in range(features):
                value = np.float32(math.exp(slab[f, y, x] - top))
                slab[f, y, x] = value
                total += value
            for f in range(features):
                slab[f, y, x] /= total


def softmax_over_maps(y: Float32, workers: Workers) -> None:
    """Softmax over the maps of every voxel of (n, f, z, y, x), in place."""

    def task(_worker: int, item: tuple[int, int]) -> None:
        n, z = item
        _softmax_slab(y[n, :, z])

    workers.for_each(task, [(n, z) for n in range(y.shape[0]) for z in range(y.shape[2])])


def activate_further(y: Float32, activation: Activation, workers: Workers) -> None:
    """In place, what an activation does beside a bias and a lower bound of zero."""
    if activation == "softmax":
        softmax_over_maps(y, workers)
    elif activation not in ("identity", "relu"):
        code, no_bias = CODES[activation], np.float32(0)

        def task(_worker: int, item: tuple[int, int]) -> None:
            activate(y[item].reshape(-1), no_bias, code)

        workers.for_each(task, list(np.ndindex(y.shape[:2])))
