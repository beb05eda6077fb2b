"""Bias and activation, applied while a layer's result is still in cache, or afterwards."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple, TypeAlias

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output
from znni.network.activations import TRAITS, Activation
from znni.network.layers import (
    Conv,
    ConvTranspose,
    Elementwise,
    Operation,
    SummedConv,
    SummedConvPair,
    Weighted,
)
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, HandedOut
from znni.primitives.cpu.common.exponential import exponential, exponential_less_one
from znni.primitives.cpu.common.lazy_kernel import lazy_njit
from znni.primitives.cpu.common.numba_kernel import longest_rows, numba_kernel, output_view
from znni.primitives.cpu.common.simd import LANES, whole_vectors
from znni.primitives.cpu.common.workers import Workers, share_count

# Layers with an activation.
Activated: TypeAlias = Weighted | Elementwise

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
    "gelu": 6,
    "gelu_tanh": 7,
    "prelu": 2,
}

# Activations that kernels apply as they store. Kernels on rows of a map call ``activate``. Kernels
# on vectors of 16 maps take a ``VectorFinish`` and call ``vector_activation.finished``. Softmax is
# a pass over the whole output.
FUSED: Set[Activation] = {name for name in CODES if TRAITS[name].kind != "maps"}

# Operations for a value by the kind of activation, one float at a time, and the share of the
# nominal rate that they sustain. Two operations stand for half a nanosecond of a core, in vectors.
# Bounds and slopes add no cost.
FLOPS = {"lines": 0, "curve": 2, "maps": 14}
EFFICIENCY = 0.02

# The tanh of larger values is 1 in float32.
MOST_TANH = np.float32(10)

# Factors of x and of its cube in the tanh of ``gelu_tanh``.
GELU_LINEAR = np.float32(0.7978845608028654)
GELU_CUBIC = np.float32(0.044715 * 0.7978845608028654)

# Coefficients of polynomials in u^2, from the highest power on. Their quotient, times u, is erf(u).
# They are those of Eigen and XLA. The error is below 1e-7.
ERF_NUMERATOR = tuple(
    map(
        np.float32,
        (
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        ),
    )
)
ERF_DENOMINATOR = tuple(
    map(
        np.float32,
        (
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        ),
    )
)

# Fewest values in a worker's task: enough to hide the cost of handing it out.
FEWEST_VALUES = 16 * 1024


def with_activation(cost: Cost, activation: Activation, out: Shape5, threads: int) -> Cost:
    """Return the cost of a convolution with its activation.

    Args:
        cost: cost without the activation.
        activation: kind of activation.
        out: shape of the output.
        threads: number of threads that share a pass over the output.
    """
    flops = out.elements * FLOPS[TRAITS[activation].kind]
    if activation in FUSED:
        return cost.plus(flops, EFFICIENCY, bytes_moved=0)
    tasks = share_count(threads, out.elements // out.f, out.elements // FEWEST_VALUES)
    return cost.plus(flops, EFFICIENCY, 2 * out.nbytes, HandedOut(1, tasks))


def with_added(cost: Cost, layer: Operation, out: Shape5) -> Cost:
    """Return the cost of a convolution, with the reads of the values to which it adds, if any."""
    if not isinstance(layer, SummedConv | SummedConvPair):
        return cost
    return cost.plus(0, 1.0, out.nbytes)


def sum_output(out: Shape5, others: tuple[Float32, ...]) -> Float32:
    """Return the array of a convolution's output, which holds the value that it adds to, if any.

    Args:
        out: shape of the output.
        others: the value to which a summed convolution adds; nothing for another convolution.
    """
    y = new_output(out)
    for other in others:
        if y.ctypes.data != other.ctypes.data or y.strides != other.strides:
            np.copyto(y, other)
    return y


class Finish(NamedTuple):
    """The last step of a layer, for kernels on rows of a map: ``activate``.

    Attributes:
        bias: the biases of the maps.
        slope: the factors of the maps for negative values, if the activation has such.
        code: the code of the activation.
    """

    bias: Float32
    slope: Float32
    code: int


def row_finish(layer: Activated, maps: int, weights: ConvWeights | None = None) -> Finish:
    """Return the last step of a layer; without weights, there are no biases.

    Args:
        maps: the number of its output maps.
        weights: the layer's weights.
    """
    bias = np.zeros(maps, np.float32) if weights is None else weights.bias
    slope = np.full(maps, layer.slope, np.float32)
    if weights is not None and weights.slope is not None:
        slope = weights.slope
    return Finish(bias, slope, CODES[layer.activation])


class VectorFinish(NamedTuple):
    """The last step of a layer, for kernels on vectors of 16 maps.

    ``vector_activation.finished`` applies it. Without a curve, a value v becomes w = max(v + bias,
    floor), and then w * slope if w is negative. ``activate_further`` does softmax.

    Attributes:
        bias: the biases of whole vectors of maps.
        slope: the factors for negative values, of whole vectors of maps.
        floor: the lower bound, 16 equal numbers.
    """

    bias: Float32
    slope: Float32
    floor: Float32


def addresses(finish: VectorFinish) -> dict[str, int]:
    """Return the arguments ``bias``, ``slope`` and ``floor`` of a kernel."""
    return {name: array.ctypes.data for name, array in finish._asdict().items()}


def vector_finish(layer: Conv | ConvTranspose, weights: ConvWeights) -> VectorFinish:
    """Return the last step of a convolution."""
    finish = row_finish(layer, layer.out_features, weights)
    bias = np.zeros(whole_vectors(layer.out_features), np.float32)
    bias[: layer.out_features] = finish.bias
    slope = np.ones_like(bias)
    if finish.code == CODES["leaky_relu"]:
        slope[: layer.out_features] = finish.slope
    floor = 0 if layer.activation == "relu" else -np.inf
    return VectorFinish(bias, slope, np.full(LANES, floor, np.float32))


@numba_kernel
def activate(row: Float32, bias: np.float32, slope: np.float32, code: int) -> None:
    """Replace each value v of a row by activation(v + bias)."""
    one, half = np.float32(1), np.float32(0.5)
    if code == 0:
        for i in range(row.size):
            row[i] += bias
    elif code == 1:
        for i in range(row.size):
            row[i] = max(row[i] + bias, np.float32(0))
    elif code == 2:
        for i in range(row.size):
            value = row[i] + bias
            row[i] = value if value > 0 else slope * value
    elif code == 3:
        for i in range(row.size):
            value = row[i] + bias
            row[i] = value if value > 0 else exponential_less_one(value)
    elif code == 4:
        for i in range(row.size):
            row[i] = one / (one + exponential(-(row[i] + bias)))
    elif code == 5:
        for i in range(row.size):
            row[i] = _tanh(row[i] + bias)
    elif code == 7:
        for i in range(row.size):
            value = row[i] + bias
            inner = value * (GELU_LINEAR + GELU_CUBIC * value * value)
            row[i] = value * (half + half * _tanh(inner))
    else:
        for i in range(row.size):
            value = row[i] + bias
            row[i] = value * _normal_share(value)


@lazy_njit(nogil=True, inline="always")
def _tanh(value):  # type: ignore[no-untyped-def]
    """Return the hyperbolic tangent of a value."""
    twice = exponential_less_one(np.float32(2) * (value if value < MOST_TANH else MOST_TANH))
    return twice / (twice + np.float32(2))


@lazy_njit(nogil=True, inline="always")
def _normal_share(value):  # type: ignore[no-untyped-def]
    """Return (1 + erf(value / sqrt(2))) / 2, the share of a normal distribution below a value."""
    u = value * np.float32(0.70710678)
    u = u if u < 4 else np.float32(4)
    u = u if u > -4 else np.float32(-4)
    s = u * u
    p, q = ERF_NUMERATOR[0], ERF_DENOMINATOR[0]
    for i in range(1, len(ERF_NUMERATOR)):
        p = p * s + ERF_NUMERATOR[i]
    for i in range(1, len(ERF_DENOMINATOR)):
        q = q * s + ERF_DENOMINATOR[i]
    return np.float32(0.5) + np.float32(0.5) * (u * p / q)


@numba_kernel
def activate_rows(memory, start, strides, extents, first, stop, bias, slope, code):  # type: ignore[no-untyped-def]
    """Apply ``activate`` to some values of (n, f, z, y, x), counted through all rows.

    The values are in flat memory, as in ``FlatView``. ``extents`` are those of the array.
    """
    length = extents[4]
    while first < stop:
        row, x = divmod(first, length)
        count = min(length - x, stop - first)
        row, y = divmod(row, extents[3])
        row, z = divmod(row, extents[2])
        n, f = divmod(row, extents[1])
        at = start + n * strides[0] + f * strides[1] + z * strides[2] + y * strides[3] + x
        activate(memory[at : at + count], bias[f], slope[f], code)
        first += count


@numba_kernel
def _softmax(memory, start, strides, extents, first, stop):  # type: ignore[no-untyped-def]
    """Compute softmax over the maps of some voxels of (n, f, z, y, x), in place, without overflow.

    Voxels are counted through all images.
    """
    features, length = extents[1], extents[4]
    while first < stop:
        row, x = divmod(first, length)
        count = min(length - x, stop - first)
        row, y = divmod(row, extents[3])
        n, z = divmod(row, extents[2])
        at = start + n * strides[0] + z * strides[2] + y * strides[3] + x
        for voxel in range(at, at + count):
            top = memory[voxel]
            for f in range(1, features):
                top = max(top, memory[voxel + f * strides[1]])
            total = np.float32(0)
            for f in range(features):
                value = exponential(memory[voxel + f * strides[1]] - top)
                memory[voxel + f * strides[1]] = value
                total += value
            for f in range(features):
                memory[voxel + f * strides[1]] /= total
        first += count


def softmax_over_maps(y: Float32, workers: Workers) -> None:
    """Compute softmax over the maps of every voxel of (n, f, z, y, x), in place."""
    (rows,) = longest_rows(y)
    view = output_view(rows)

    def task(_worker: int, voxels: slice) -> None:
        _softmax(*view, rows.shape, voxels.start, voxels.stop)

    count = y.size // y.shape[1]
    workers.for_each(task, workers.shares(count, y.size // FEWEST_VALUES))


def activate_values(y: Float32, activation: Activation, workers: Workers) -> None:
    """Apply an activation without slopes to all values (n, f, z, y, x), in place."""
    if activation == "softmax":
        softmax_over_maps(y, workers)
    elif activation != "identity":
        code, none = CODES[activation], np.zeros(y.shape[1], np.float32)
        view = output_view(y)

        def task(_worker: int, values: slice) -> None:
            activate_rows(*view, y.shape, values.start, values.stop, none, none, code)

        workers.for_each(task, workers.shares(y.size, y.size // FEWEST_VALUES))


def activate_further(y: Float32, layer: Weighted | Elementwise, workers: Workers) -> None:
    """Apply the part of a layer's activation that needs all maps: softmax.

    Args:
        y: values (n, f, z, y, x), changed in place.
        workers: threads that share the values.
    """
    if layer.activation == "softmax":
        softmax_over_maps(y, workers)
