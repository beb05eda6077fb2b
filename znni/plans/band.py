"""The band in which a job's time lies, beside its predicted time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from znni.core.text import duration
from znni.plans.segments import Step

# The beginnings of the sources of predicted times.
MEASURED_HERE = "measured on this machine"
FLOPS_AND_BYTES = "a model of flops and bytes"


class Band(NamedTuple):
    """The shares of a predicted time between which nine of ten jobs end.

    Attributes:
        least: the lower share.
        most: the upper share, if no other program runs.
        slowdown: how many times as long a job takes beside the programs that run now.
    """

    least: float
    most: float
    slowdown: float = 1.0

    @property
    def longest(self) -> float:
        """The upper share, beside the programs that run now."""
        return self.most * self.slowdown

    def around(self, seconds: float, known: float = 0.0) -> str:
        """Return the band around predicted seconds in words, with known seconds beside them."""
        least, most = (duration(known + end) for end in self.limits(seconds))
        beside = " beside the programs that run now" * (self.slowdown >= NOTABLE_SLOWDOWN)
        return f"between {least} and {most} nine times of ten{beside}"

    def limits(self, seconds: float) -> tuple[float, float]:
        """Return the ends of the band around predicted seconds."""
        return self.least * seconds, self.longest * seconds


# The seconds between which some work ends.
Limits: TypeAlias = tuple[float, float]


def sum_of_limits(limits: Iterable[Limits]) -> Limits:
    """Return the sums of the least seconds, and of the most."""
    least, most = zip(*limits, strict=True)
    return sum(least), sum(most)


def with_limits(seconds: float, limits: Limits) -> str:
    """Return predicted seconds and the ends of their band, for tables."""
    least, most = map(duration, limits)
    return f"{duration(seconds)} ({least} to {most})"


# Less slowdown is not worth a word.
NOTABLE_SLOWDOWN = 1.25

# The expected error of a step's seconds, as a share of them, if no similar call was measured. It
# was 0.21 over 544 layers on the machine where the primitives' efficiencies were measured
# (bench/results/layers-*.json). Other machines differ in caches and clocks.
BUILT_IN_ERROR = 0.3

# The band of jobs on a machine that was never measured. Cores of an EPYC and of two Xeons worked
# 1.0 to 1.5 times the predicted seconds, and an H200 0.9 to 1.2 times. The rest is for processors
# that are further from the nominal rates.
NOT_CALIBRATED = Band(0.7, 2.5)

# The band of a measured time in units of its expected error: this much less, and this much more.
# After calibrations, 91 % of 123 runs were within one error. A first measurement has few calls:
# eight jobs on two cores were up to 1.3 errors faster and 1.5 errors slower. Other programs and
# cold memory delay a whole job more than a short call.
LESS, MORE = 1.65, 2.5


def band_of(costs: str, runs: Iterable[tuple[Step, float]], slowdown: float) -> Band:
    """Return the band of a plan's time.

    Args:
        costs: the source of the predicted times.
        runs: the steps, with the number of times that each runs.
        slowdown: how many times as long a job takes beside the programs that run now.
    """
    less = more = total = 0.0
    built_in = costs.startswith(FLOPS_AND_BYTES)
    for step, n in runs:
        seconds = n * step.seconds
        # A step that says its own seconds is a program of its own, and was measured by itself.
        if built_in or (step.error >= BUILT_IN_ERROR and step.cost.seconds is None):
            less += seconds * (1 - NOT_CALIBRATED.least)
            more += seconds * (NOT_CALIBRATED.most - 1)
        else:
            less += seconds * LESS * step.error
            more += seconds * MORE * step.error
        total += seconds
    return Band(1 - less / total, 1 + more / total, slowdown)
