"""The point that stands for a call: calls with near points take similar times."""

from __future__ import annotations

from math import log2
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5
from znni.network.layers import Conv, ConvTranspose, Operation, Pool, Upsample, layers_of

Numbers: TypeAlias = NDArray[np.float64]
Point: TypeAlias = tuple[float, ...]

AXES = 5


def point_of(operation: Operation, shape: Shape5) -> Point:
    """Return the point of a call, in factors of two along each axis.

    Axes are the batch, input and output maps, and the mean extents of kernel and window. A stride
    or a factor counts as a window. The batch is rounded to a whole number, so that a search meets
    few points. The image does not count: it tells nothing that the built-in model does not know.
    """
    kernel = window = 1.0
    features = shape.f
    for layer in layers_of(operation):
        match layer:
            case Conv() | ConvTranspose():
                kernel, features = layer.kernel.volume, layer.out_features
                window *= layer.stride.volume
            case Upsample(factor=factor):
                window *= factor.volume
            case Pool() as pool:
                window *= pool.window.volume
    return (round(log2(shape.n)), log2(shape.f), log2(features), log2(kernel) / 3, log2(window) / 3)
