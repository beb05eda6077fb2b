"""Bias and activation, applied while a convolution's result is still in cache, or afterwards."""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np

from znni.core.shapes import Shape5
from znni.network.layers import Activation, Conv
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, HandedOut
from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.primitives.cpu.common.simd import LANES, whole_vectors
from znni.primitives.cpu.common.workers import Workers, share_count

# Codes for compiled kernels. Softmax needs all maps of a voxel. The kernel adds the bias only, and
# ``softmax_over_maps`` follows when all maps are complete.
CODES: dict[Activation, int] = {
    "identity": 0,
    "softmax": 0,
    "relu": 1,
    "leaky_relu": 2,
    "elu": 3,
    "sigmoid": 4,
    "tanh": 5,
}

# Activations that kernels apply as they store. Kernels on rows of a map call ``activate``. Kernels
# on vectors of 16 maps take ``bias_and_floor``. Other activations are a pass over the whole output.
FUSED_BY_ROW: Set[Activation] = CODES.keys() - {"softmax"}
FUSED_BY_VECTOR: Set[Activation] = {"identity", "relu"}

# Operations for a value, one float at a time, and the share of the nominal rate that they sustain.
# For tanh, 51 operations stand for the measured 16 nanoseconds of a core. Bounds and slopes add no
# cost.
FLOPS: dict[Activation, float] = {
    "identity": 0,
    "relu": 0,
    "leaky_relu": 0,
    "elu": 33,
    "sigmoid": 9,
    "tanh": 51,
    "softmax": 14,
}
EFFICIENCY = 0.02

# Fewest values in a worker's task: enough to hide the cost of handing it out.
FEWEST_VALUES = 16 * 1024


def with_activation(
    cost: Cost, activation: Activation, out: Shape5, fused: Set[Activation], threads: int
) -> Cost:
    """Return the cost of a convolution with its activation.

    Args:
        cost: cost without the activation.
        activation: kind of activation.
        out: shape of the output.
        fused: activations that need no extra pass that reads and writes the output.
        threads: number of threads that share such a pass.
    """
    flops = out.elements * FLOPS[activation]
    if activation in fused:
        return cost.plus(flops, EFFICIENCY, bytes_moved=0)
    items = out.elements // out.f if activation == "softmax" else out.elements
    tasks = share_count(threads, items, out.elements // FEWEST_VALUES)
    return cost.plus(flops, EFFICIENCY, 2 * out.nbytes, HandedOut(1, tasks))


def bias_and_floor(layer: Conv, weights: ConvWeights) -> tuple[Float32, Float32]:
    """Return biases of whole vectors and a floor vector, for max(value + bias, floor).

    Kernels on 16 maps take them. ``activate_further`` does the rest of the activation.
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


@numba_kernel
def _softmax(y: Float32, first: int, stop: int) -> None:
    """Compute softmax over the maps of some voxels of (n, f, voxel), in place, without overflow.

    Voxels are counted through all images.
    """
    _, features, size = y.shape
    while first < stop:
        n, start = divmod(first, size)
        image = y[n, :, start : start + stop - first]
        for voxel in range(image.shape[1]):
            top = image[0, voxel]
            for f in range(1, features):
                top = max(top, image[f, voxel])
            total = np.float32(0)
            for f in range(features):
                value = np.float32(math.exp(image[f, voxel] - top))
                image[f, voxel] = value
                total += value
            for f in range(features):
                image[f, voxel] /= total
        first += image.shape[1]


def softmax_over_maps(y: Float32, workers: Workers) -> None:
    """Compute softmax over the maps of every voxel of (n, f, z, y, x), C-contiguous, in place."""
    images = y.reshape(*y.shape[:2], -1)

    def task(_worker: int, voxels: slice) -> None:
        _softmax(images, voxels.start, voxels.stop)

    count = y.size // y.shape[1]
    workers.for_each(task, workers.shares(count, y.size // FEWEST_VALUES))


def activate_further(y: Float32, activation: Activation, workers: Workers) -> None:
    """Apply the part of an activation beyond a bias and a lower bound of zero.

    Args:
        y: values (n, f, z, y, x), C-contiguous, changed in place.
        activation: activation of the layer.
        workers: threads that share the values.
    """
    if activation == "softmax":
        softmax_over_maps(y, workers)
    elif activation not in FUSED_BY_VECTOR:
        values, code, no_bias = y.reshape(-1), CODES[activation], np.float32(0)

        def task(_worker: int, part: slice) -> None:
            activate(values[part], no_bias, code)

        workers.for_each(task, workers.shares(y.size, y.size // FEWEST_VALUES))
