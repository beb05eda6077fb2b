"""The time of one primitive on one shape, as in a patch that is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from znni.calibration.shapes import Call
from znni.machine.arena import Arena
from znni.machine.timing import Timing, timed
from znni.network.network import Conv, Network, Operation, PooledConv
from znni.network.weights import ConvWeights, random_weights
from znni.plans.primitive import Primitive

NOISE = 2**16  # different numbers in an input, which times do not depend on


class Workbench:
    """Memory that one measurement after the other takes place in, its pages touched once.

    Args:
        calls: all that will be measured, with primitives that do them. The memory that they take
            is the caller's to check: the largest input, the most that a call takes beside its
            input, and what is kept between calls.
    """

    def __init__(self, calls: Sequence[tuple[Primitive, Call]]) -> None:
        elements, beside = memory_for(calls)
        few = np.random.default_rng(0).standard_normal(NOISE, np.float32)
        self._noise = np.resize(few, elements)
        self._arena = Arena(beside)

    def measure(self, primitive: Primitive, call: Call, repeats: int) -> Timing:
        """Build, warm up, and time a call, alone.

        Args:
            primitive: one that does such calls.
            call: one of those given.
            repeats: timed calls.
        """
        return timed(self.ready(primitive, call), repeats)

    def ready(self, primitive: Primitive, call: Call) -> Callable[[], None]:
        """A call that is built, to be made any number of times, alone; as of ``measure``."""
        operation, shape = call
        run = primitive.build(operation, shape, some_weights(operation))
        x = self._noise[: shape.elements].reshape(shape)

        def run_once() -> None:
            with self._arena.in_use():
                run(x)

        return run_once


def memory_for(calls: Sequence[tuple[Primitive, Call]]) -> tuple[int, int]:
    """What some calls take, one at a time.

    Returns:
        elements of the largest input, and bytes of the most that a call takes beside its input.
    """
    inputs = (call.shape.elements for _, call in calls)
    beside = (primitive.cost(*call).memory.working - call.shape.nbytes for primitive, call in calls)
    return max(inputs, default=0), max(beside, default=0)


def some_weights(operation: Operation) -> ConvWeights | None:
    """Random ones of a convolution; None for a pooling."""
    conv = operation.conv if isinstance(operation, PooledConv) else operation
    if not isinstance(conv, Conv):
        return None
    return random_weights(Network("measured", conv.in_features, (conv,)), 0)[conv.name]
