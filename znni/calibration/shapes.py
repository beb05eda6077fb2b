"""What to measure: calls as networks make them, in little time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, log
from random import Random
from typing import NamedTuple

from planner.cost_model import BUILT_IN
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import DeviceKind
from znni.network.network import Conv, Operation, Pool, PooledConv
from znni.plans.primitive import Primitive

# Layers: of kernels, pooling windows and maps (in, out), the common ones several times.
KERNELS = range(1, 10)
WINDOWS = (Vec3(2, 2, 2), Vec3(2, 2, 2), Vec3(1, 2, 2), Vec3(3, 3, 3))
MAPS = ((1, 24), (1, 80), (24, 24), (80, 80), (80, 80), (80, 80), (80, 3))
POOLED_MAPS = ((1, 24), (1, 80), (3, 24))

# Fragments of none, one and two pools.
BATCHES = (1, 8, 64)
LEAST_EXTENT = 4
UNEVEN = 0.5  # how far an extent is from the mean one, in factors of two, at most

MOST_DRAWN = 10_000  # until there are enough that suit


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
        budget: seconds after which no further call is measured, once there is one of each
            primitive.
        extents: least and largest mean extent of an output, of one image.
    """

    calls: int
    shortest: float
    longest: float
    resident: int
    repeats: int
    budget: float
    extents: tuple[int, int] = (8, 200)


QUICK = Effort(6, shortest=0.03, longest=0.08, resident=2**29, repeats=2, budget=40.0)
FULL = Effort(12, shortest=0.02, longest=0.5, resident=2**30, repeats=3, budget=1200.0)

# A GPU's calls take milliseconds, and building them a second: few are repeated often. Their images
# are larger: few voxels do not keep it busy.
GPU_QUICK = Effort(
    4, shortest=2e-3, longest=0.02, resident=2**30, repeats=5, budget=40.0, extents=(48, 400)
)
GPU_FULL = replace(GPU_QUICK, calls=12, longest=0.06, budget=300.0)


def effort_for(device: DeviceKind, *, quick: bool) -> Effort:
    """How much to measure on a device; for a minute at most, if ``quick``."""
    if device == "gpu":
        return GPU_QUICK if quick else GPU_FULL
    return QUICK if quick else FULL


class Call(NamedTuple):
    """What a primitive is measured on."""

    operation: Operation
    shape: Shape5


def designed_calls(primitive: Primitive, effort: Effort, allowed: int) -> list[Call]:
    """Calls at random, so that any number of the first ones is a fair sample.

    They are others for each primitive, and ever the same for one.

    Args:
        primitive: what is measured.
        effort: how much.
        allowed: bytes for measuring: a third each for inputs, for what calls take beside them,
            and for what is kept between calls.
    """
    found: list[Call] = []
    for call in islice(random_calls(Random(primitive.name), effort.extents), MOST_DRAWN):
        if call not in found and _suits(primitive, call, effort, allowed):
            found.append(call)
        if len(found) == effort.calls:
            break
    return found


def random_calls(random: Random, extents: tuple[int, int]) -> Iterator[Call]:
    """Layers of networks on images of all sizes between two mean extents, without end."""

    def extents_of(images: int) -> Vec3:
        """Of one of some images that are together as large as a single one may be."""
        mean = exp(random.uniform(*map(log, extents))) / images ** (1 / 3)
        return Vec3(
            *(max(LEAST_EXTENT, round(mean * 2 ** random.uniform(-UNEVEN, UNEVEN))) for _ in "zyx")
        )

    while True:
        kernel, window = Vec3.of(random.choice(KERNELS)), random.choice(WINDOWS)
        features, out_features = random.choice(MAPS)
        batch = random.choice(BATCHES) if features > 1 else 1  # a first layer's input is whole
        yield _convolution(kernel, features, out_features, batch, extents_of(batch))
        # Fragments need extents of a window less one voxel.
        size = window * (extents_of(batch * window.volume) + 1) - 1
        yield Call(Pool("pool", window), Shape5.of(batch, out_features, size))
        features, out_features = random.choice(POOLED_MAPS)
        yield _pooled(kernel, window, features, out_features, extents_of(window.volume))


def _convolution(kernel: Vec3, features: int, out_features: int, batch: int, out: Vec3) -> Call:
    conv = Conv("conv", features, out_features, kernel, "relu")
    return Call(conv, Shape5.of(batch, features, out + kernel - 1))


def _pooled(kernel: Vec3, window: Vec3, features: int, out_features: int, out: Vec3) -> Call:
    conv = Conv("conv", features, out_features, kernel, "relu")
    size = window * out + kernel - 1
    return Call(PooledConv(conv, Pool("pool", window)), Shape5.of(1, features, size))


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
