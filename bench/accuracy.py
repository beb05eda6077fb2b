"""Relative error against float64, at a sample of output voxels."""

from __future__ import annotations

import numpy as np

from znni.network import Conv
from znni.primitives.reference import convolution
from znni.shapes import Shape5
from znni.weights import ConvWeights, Float32

SAMPLES = 64


def sampled_error(x: Float32, y: Float32, layer: Conv, weights: ConvWeights) -> float:
    """The largest error at random voxels, all maps, relative to the largest value there.

    Args:
        x: input (n, f, z, y, x).
        y: the layer's output to judge.
        layer: the convolution.
        weights: its parameters.
    """
    generator = np.random.default_rng(1)
    shape = Shape5(*y.shape)
    k = layer.kernel
    worst = scale = 0.0
    for _ in range(SAMPLES):
        n, z, row, column = (int(generator.integers(e)) for e in (shape.n, *shape.size))
        window = x[n : n + 1, :, z : z + k.z, row : row + k.y, column : column + k.x]
        expected = convolution(window, layer, weights)[0, :, 0, 0, 0]
        worst = max(worst, float(np.abs(y[n, :, z, row, column] - expected).max()))
        scale = max(scale, float(np.abs(expected).max()))
    return worst / scale
