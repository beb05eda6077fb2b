"""Common parts of the calibration tests: primitives, a short campaign, made-up measurements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from fakes import Fake, fake_catalogue

from planner.cost_model import BUILT_IN
from znni.calibration.campaign import Campaign
from znni.calibration.effort import Effort
from znni.calibration.shapes import Call
from znni.core.option_types import OutputType
from znni.core.shapes import Shape5, Vec3
from znni.machine.handling_times import READ, HandlingTimes, SecondsPerValue
from znni.network.layers import Conv
from znni.plans.primitive import Primitive

CATALOGUE = fake_catalogue()
ALLOWED = 2**30
SOON = SecondsPerValue(1e-9, 1e-9)

# What a measurement of the machine gives if it handles voxels at once.
QUICK_HANDLING = HandlingTimes(
    1e-9, 1e-9, dict.fromkeys(READ, SOON), dict.fromkeys(get_args(OutputType), SOON)
)
FEW = Effort(6, shortest=0.001, longest=0.1, resident=2**20, repeats=3, budget=1e9)


def no_progress(_done: int, _planned: int) -> None:
    pass


def campaign(*primitives: Primitive, effort: Effort = FEW) -> Campaign:
    return Campaign(primitives or CATALOGUE.values(), effort, ALLOWED)


def built_in_seconds(primitive: Fake, call: Call) -> float:
    return BUILT_IN.estimate(primitive, *call, primitive.cost(*call)).seconds


def slow(primitive: Fake, factor: float) -> Iterator[tuple[Primitive, Call, float]]:
    """Yield calls that took ``factor`` times as long as predicted."""
    for extent in range(8, 20):
        call = Call(Conv("conv", 1, 1, Vec3.of(3), "relu"), Shape5(1, 1, extent, 20, 30))
        yield primitive, call, factor * built_in_seconds(primitive, call)
