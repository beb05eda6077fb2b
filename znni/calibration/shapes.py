"""What to measure: calls that tell the most about a primitive in little time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from planner.costs import BUILT_IN
from znni.calibration.features import place
from znni.calibration.fit import distances_between
from znni.network import Conv, Operation, Pool, PooledConv
from znni.primitive import Primitive
from znni.shapes import Shape5, Vec3

KERNELS = range(1, 10)
WINDOWS = (Vec3(2, 2, 2), Vec3(1, 2, 2), Vec3(3, 3, 3))
BATCHES = (1, 8, 64)
EXTENTS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of outputs
MAPS = ((1, 24), (1, 80), (24, 24), (80, 80), (80, 3))
POOLED_MAPS = ((1, 24), (1, 80), (3, 24))


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    Attributes:
        calls: of each primitive, at most.
        shortest: seconds that a call is predicted to take, at least: much shorter ones tell of
            calling and of caches, and little of long ones.
        longest: at most.
        resident: bytes of what a call keeps: transformed kernels take time to make.
        repeats: of a call that are timed; their median counts.
        budget: seconds after which no further round over the primitives starts, once there are
            enough for a fit.
    """

    calls: int
    shortest: float
    longest: float
    resident: int
    repeats: int
    budget: float


QUICK = Effort(8, shortest=0.01, longest=0.04, resident=2**27, repeats=3, budget=40.0)
FULL = Effort(16, shortest=0.01, longest=0.5, resident=2**30, repeats=3, budget=1200.0)


class Call(NamedTuple):
    """What a primitive is measured on."""

    operation: Operation
    shape: Shape5


def designed_calls(primitive: Primitive, effort: Effort, allowed: int) -> list[Call]:
    """Calls as unlike each other as can be, the most telling first.

    Args:
        primitive: what is measured.
        effort: how much.
        allowed: bytes for measuring: a third each for inputs, for what calls take beside them,
            and for what is kept between calls.
    """
    suited = [call for call in every_call() if _suits(primitive, call, effort, allowed)]
    return _spread(suited, effort.calls)


def every_call() -> Iterator[Call]:
    """Layers of networks, with outputs of all sizes."""
    for kernel, (features, out_features) in product(KERNELS, MAPS):
        conv = Conv("conv", features, out_features, Vec3.of(kernel), "relu")
        for batch, extent in product(BATCHES, EXTENTS):
            yield Call(conv, Shape5.of(batch, features, Vec3.of(extent + kernel - 1)))
    for window, features in product(WINDOWS, sorted({maps for _, maps in MAPS})):
        for batch, extent in product(BATCHES, EXTENTS):
            size = window * (extent + 1) - 1
            yield Call(Pool("pool", window), Shape5.of(batch, features, size))
    for window, kernel, (features, out_features) in product(WINDOWS, KERNELS, POOLED_MAPS):
        conv = Conv("conv", features, out_features, Vec3.of(kernel), "relu")
        for extent in EXTENTS:
            size = window * extent + kernel - 1
            yield Call(PooledConv(conv, Pool("pool", window)), Shape5.of(1, features, size))


def _suits(primitive: Primitive, call: Call, effort: Effort, allowed: int) -> bool:
    """Whether the primitive does it, within the limits."""
    if primitive.out_shape(*call) is None:
        return False
    cost = primitive.cost(*call)
    seconds = BUILT_IN.estimate(primitive, *call, cost).seconds
    memory, third = cost.memory, allowed // 3
    return (
        effort.shortest <= seconds <= effort.longest
        and memory.resident <= min(effort.resident, third)
        and max(call.shape.nbytes, memory.working - call.shape.nbytes) <= third
    )


def _spread(calls: list[Call], count: int) -> list[Call]:
    """Starting amid all, the one farthest from those before it, again and again."""
    if not calls:
        return []
    places = np.array([place(*call) for call in calls])
    chosen = [int(np.argmin(distances_between(places.mean(axis=0), places)))]
    apart = distances_between(places[chosen[0]], places)
    while len(chosen) < count and apart.max() > 0:
        chosen.append(int(np.argmax(apart)))
        apart = np.minimum(apart, distances_between(places[chosen[-1]], places))
    return [calls[index] for index in chosen]
