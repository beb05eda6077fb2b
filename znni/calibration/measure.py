"""The time of one primitive on one shape, as in a patch that is under way."""

from __future__ import annotations

from functools import partial

import numpy as np

from znni.arena import Arena
from znni.calibration.shapes import Call
from znni.network import Conv, Network, Operation, PooledConv
from znni.primitive import Primitive
from znni.shapes import Shape5
from znni.timing import Timing, timed
from znni.weights import ConvWeights, Float32, random_weights

NOISE = 2**16  # different numbers in an input, which times do not depend on


def measured_call(primitive: Primitive, call: Call, repeats: int) -> Timing:
    """Build, warm up, and time a call on an arena, alone.

    Args:
        primitive: one that does such calls.
        call: its operation and shape. The memory that it takes is the caller's to check.
        repeats: timed calls.
    """
    operation, shape = call
    run = primitive.build(operation, shape, _weights(operation))
    with Arena(primitive.cost(operation, shape).memory.working).in_use():
        return timed(partial(run, _noise(shape)), repeats)


def _weights(operation: Operation) -> ConvWeights | None:
    conv = operation.conv if isinstance(operation, PooledConv) else operation
    if not isinstance(conv, Conv):
        return None
    return random_weights(Network("measured", conv.in_features, (conv,)), 0)[conv.name]


def _noise(shape: Shape5) -> Float32:
    few = np.random.default_rng(0).standard_normal(NOISE, np.float32)
    return np.resize(few, shape)
