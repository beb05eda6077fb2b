"""Relative error against float64, at a sample of output voxels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from bench.noise import patch_input
from znni.network import Conv, Network, Pool, PooledConv
from znni.primitives.reference import activation, convolution, pooling
from znni.shapes import Box, Shape5, Vec3
from znni.weights import ConvWeights, Float32, Weights

SAMPLES = 64
UNPOOLED = Pool("none", Vec3(1, 1, 1))
CORNER = 2  # voxels per axis of a network's output that are judged


def sampled_error(x: Float32, y: Float32, layer: Conv | PooledConv, weights: ConvWeights) -> float:
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


def corner(network: Network, y: Float32) -> Float32:
    """The voxels (f', z, y, x) of a patch's output that ``CornerReference`` judges.

    They are total pooling apart, so that plain pooling gives them too.
    """
    p = network.total_pooling
    return y[:, :: p.z, :: p.y, :: p.x][:, :CORNER, :CORNER, :CORNER].copy()


class CornerReference:
    """A network's output at the corner of ``patch_input``, in float64.

    By plain pooling, and by FFT over whole images, which makes the largest networks a matter of
    a minute.

    Args:
        network: what to compute.
        weights: its parameters.
        threads: for the transforms.
    """

    def __init__(self, network: Network, weights: Weights, threads: int) -> None:
        x = patch_input(network, network.total_pooling * (CORNER - 1) + 1)
        value = x[np.newaxis].astype(np.float64)
        for layer in network.layers:
            if isinstance(layer, Conv):
                value = _convolution(value, layer, weights[layer.name], threads)
            else:
                value = pooling(value, layer)
        self._expected = value[0]

    def error(self, found: Float32) -> float:
        """The largest error of a ``corner``, relative to the largest value in it."""
        _, z, y, x = found.shape
        expected = self._expected[:, :z, :y, :x]
        return float(np.abs(found - expected).max() / np.abs(expected).max())


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
