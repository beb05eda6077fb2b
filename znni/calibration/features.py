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
    PackedLayer,
    Pool,
    PooledConv,
    SummedConv,
    Upsample,
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
    if isinstance(operation, PackedLayer):
        operation = operation.layer
    kernel = window = 1.0
    features = shape.f
    match operation:
        case Conv() | ConvTranspose():
            kernel, features = operation.kernel.volume, operation.out_features
            window = operation.stride.volume
        case Upsample():
            window = operation.factor.volume
        case Pool():
            window = operation.window.volume
        case SummedConv():
            kernel, features = operation.conv.kernel.volume, operation.conv.out_features
        case PooledConv():
            kernel, window = operation.conv.kernel.volume, operation.pool.window.volume
            features = operation.conv.out_features
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
