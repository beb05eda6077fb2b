"""Relative error against float64, at a sample of output voxels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from bench.noise import ORIGIN, patch_input
from bench.on_device import Elsewhere
from znni.core.shapes import Box, Shape5, Vec3
from znni.network.network import Conv, Network, Pool, PooledConv
from znni.network.weights import ConvWeights, Float32, Weights
from znni.primitives.reference import activation, convolution, pooling

SAMPLES = 64
UNPOOLED = Pool("none", Vec3(1, 1, 1))
CORNER = 2  # voxels per axis of a network's output that are judged in a corner


# What gives the output (f', z, y, x) of an image (f, z, y, x) by plain pooling, in float64.
Pooled: TypeAlias = Callable[[Float32], NDArray[np.floating]]


def sampled_error(
    x: Elsewhere, y: Elsewhere, layer: Conv | PooledConv, weights: ConvWeights
) -> float:
    """The largest error at random voxels, all maps, relative to the largest value there.

    Args:
        x: input (n, f, z, y, x).
        y: the layer's output to judge.
        layer: the convolution, with its pooling or without.
        weights: its parameters.
    """
    generator = np.random.default_rng(1)
    shape = Shape5(*y.shape)
    conv, pool = (layer.conv, layer.pool) if isinstance(layer, PooledConv) else (layer, UNPOOLED)
    view, stride = conv.kernel + pool.window - 1, pool.window
    worst = scale = 0.0
    for _ in range(SAMPLES):
        n, *place = (int(generator.integers(extent)) for extent in (shape.n, *shape.size))
        at = Vec3(*place)
        corner = at * stride
        seen = x[n : n + 1, :, *Box(corner, corner + view).slices]
        expected = pooling(convolution(seen, conv, weights), pool)[0, :, 0, 0, 0]
        worst = max(worst, float(np.abs(y[n, :, at.z, at.y, at.x] - expected).max()))
        scale = max(scale, float(np.abs(expected).max()))
    return worst / scale


class Corners(NamedTuple):
    """The voxels of a patch's output that ``CornerReference`` judges.

    They are total pooling apart, so that plain pooling gives them too. The first and the last
    are of different fragments and, where a patch is computed in tiles, of different tiles.

    Attributes:
        patch: output voxels per axis.
        first: (f', z, y, x) from the first voxel on.
        last: the same up to the last voxel; None where that is not computed.
    """

    patch: Vec3
    first: Float32
    last: Float32 | None


def corners(network: Network, y: Elsewhere) -> Corners:
    """Both corners of a patch's output (f', Z, Y, X)."""
    patch, p = Vec3(*y.shape[1:]), network.total_pooling
    count = patch.ceil_div(p).minimum(Vec3.of(CORNER))
    first, last = (
        samples(network, y, start, count) for start in (ORIGIN, patch - 1 - p * (count - 1))
    )
    return Corners(patch, first, last)


def samples(network: Network, y: Elsewhere, start: Vec3, count: Vec3) -> Float32:
    """So many voxels (f', z, y, x) of a patch's output, from one on, total pooling apart."""
    p = network.total_pooling
    stop = start + p * (count - 1) + 1
    part = y[:, start.z : stop.z : p.z, start.y : stop.y : p.y, start.x : stop.x : p.x]
    return np.array(part, np.float32)


class CornerReference:
    """A network's output in patches of ``patch_input``, in float64, at voxels total pooling apart.

    Patches share the first corner; each has a last one of its own.

    Args:
        network: what to compute.
        pooled: the network by plain pooling, in float64.
    """

    def __init__(self, network: Network, pooled: Pooled) -> None:
        self._network, self._pooled = network, pooled
        self._known: dict[tuple[Vec3, Vec3], NDArray[np.floating]] = {}

    def error(self, found: Corners) -> float:
        """The largest error in the corners, relative to the largest value in them."""
        judged = [(ORIGIN, found.first)]
        if found.last is not None:
            count = Vec3(*found.last.shape[1:])
            judged.append((found.patch - 1 - self._network.total_pooling * (count - 1), found.last))
        return self.error_of(judged)

    def error_of(self, judged: Iterable[tuple[Vec3, Float32]]) -> float:
        """The same of ``samples`` from any voxels on."""
        pairs = [(y, self._output(start, Vec3(*y.shape[1:]))) for start, y in judged]
        worst = max(float(np.abs(y - expected).max()) for y, expected in pairs)
        return worst / max(float(np.abs(expected).max()) for _, expected in pairs)

    def _output(self, start: Vec3, count: Vec3) -> NDArray[np.floating]:
        """So many voxels from one on, total pooling apart; computed once."""
        if (start, count) not in self._known:
            span = self._network.total_pooling * (count - 1) + 1
            self._known[start, count] = self._pooled(patch_input(self._network, span, start))
        return self._known[start, count]


def pooled_by_fft(network: Network, weights: Weights, threads: int) -> Pooled:
    """By FFT over whole images: the largest networks take a minute for a corner.

    Args:
        network: what to compute.
        weights: its parameters.
        threads: for the transforms.
    """

    def pooled(x: Float32) -> NDArray[np.floating]:
        value = x[np.newaxis].astype(np.float64)
        for layer in network.layers:
            if isinstance(layer, Conv):
                value = _convolution(value, layer, weights[layer.name], threads)
            else:
                value = pooling(value, layer)
        return np.asarray(value[0])

    return pooled


def _convolution(
    x: NDArray[np.float64], layer: Conv, weights: ConvWeights, threads: int
) -> NDArray[np.float64]:
    """As ``reference.convolution``, of one item, by circular correlation in float64."""
    axes = (-3, -2, -1)
    valid = Vec3(*x.shape[2:]) - layer.kernel + 1
    size = [fft.next_fast_len(extent, real=True) for extent in x.shape[2:]]
    y = np.empty((1, layer.out_features, *valid))
    with fft.set_workers(threads):
        spectra = fft.rfftn(x[0], size, axes)
        for index, kernel in enumerate(weights.weight.astype(np.float64)):
            product = np.conj(fft.rfftn(kernel, size, axes))
            product *= spectra
            whole = fft.irfftn(product.sum(axis=0), size, axes)
            y[0, index] = whole[: valid.z, : valid.y, : valid.x] + weights.bias[index]
    return activation(y, layer.activation)
