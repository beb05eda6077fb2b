"""The place of a call among others, which tells how alike two calls are."""

from __future__ import annotations

from math import log2
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5
from znni.network.layers import (
    Conv,
    ConvTranspose,
    Operation,
    Pool,
    PooledConv,
    SummedConv,
    Upsample,
    on_float32,
)
from znni.plans.cost import Cost
from znni.plans.nominal_time import nominal_seconds
from znni.plans.primitive import Primitive

Numbers: TypeAlias = NDArray[np.float64]

AXES = 7

# Largest balance of arithmetic and traffic, for calls that have only one of them.
EXTREME = 8.0
LEAST_SECONDS = 1e-9


def place(primitive: Primitive, operation: Operation, shape: Shape5, cost: Cost) -> Numbers:
    """Return the place of a call, in factors of two along each axis.

    Axes are the batch, input and output maps, the mean extents of image, kernel and window, and the
    balance of arithmetic and memory traffic. A stride or a factor counts as a window.
    """
    kernel = window = 1.0
    features = shape.f
    match on_float32(operation):
        case Conv() | ConvTranspose() as layer:
            kernel, features = layer.kernel.volume, layer.out_features
            window = layer.stride.volume
        case Upsample(factor=factor):
            window = factor.volume
        case Pool() as pool:
            window = pool.window.volume
        case SummedConv(conv=conv):
            kernel, features = conv.kernel.volume, conv.out_features
        case PooledConv(conv, pool):
            kernel, window, features = conv.kernel.volume, pool.window.volume, conv.out_features
    arithmetic, traffic = (max(s, LEAST_SECONDS) for s in nominal_seconds(primitive, cost))
    balance = max(-EXTREME, min(EXTREME, log2(arithmetic / traffic)))
    image = shape.size.volume
    return np.array(
        [
            log2(shape.n),
            log2(shape.f),
            log2(features),
            log2(image) / 3,
            log2(kernel) / 3,
            log2(window) / 3,
            balance,
        ]
    )
