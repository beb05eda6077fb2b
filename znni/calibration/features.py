"""Calls of primitives as numbers: what their times are made of, and how alike two calls are."""

from __future__ import annotations

from math import log2
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.costs import CALL_SECONDS, NOT_HIDDEN, nominal_seconds
from znni.cost import Cost
from znni.network import Conv, Operation, Pool, PooledConv
from znni.primitive import Primitive
from znni.shapes import Shape5

Numbers: TypeAlias = NDArray[np.float64]

# What the built-in model multiplies the terms with.
BUILT_IN_WEIGHTS: Numbers = np.array([CALL_SECONDS, 0.0, 1.0, NOT_HIDDEN])


def terms(primitive: Primitive, shape: Shape5, cost: Cost) -> Numbers:
    """What a time is a sum of, times weights.

    Once for the call; once for each item of the batch, as some primitives take one at a time; and
    the longer and the shorter of arithmetic and traffic, in nominal seconds.
    """
    return np.array([1.0, shape.n, *nominal_seconds(primitive, cost)])


def place(operation: Operation, shape: Shape5) -> Numbers:
    """Where a call stands among others: a distance of one is a factor of two in one extent.

    Axes are the batch, input and output maps, and the mean extents of image, kernel and window.
    """
    kernel = window = 1.0
    features = shape.f
    match operation:
        case Conv():
            kernel, features = operation.kernel.volume, operation.out_features
        case Pool():
            window = operation.window.volume
        case PooledConv():
            kernel, window = operation.conv.kernel.volume, operation.pool.window.volume
            features = operation.conv.out_features
    extents = (log2(volume) / 3 for volume in (shape.size.volume, kernel, window))
    return np.array([log2(shape.n), log2(shape.f), log2(features), *extents])
