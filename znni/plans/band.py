"""The band in which a job's time lies, beside its predicted time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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

    def for_share(self, share: float) -> Band:
        """Return the band of a job if only a share of its time has this band."""
        return Band(1 + share * (self.least - 1), 1 + share * (self.most - 1))

    @property
    def longest(self) -> float:
        """The upper share, beside the programs that run now."""
        return self.most * self.slowdown

    def around(self, seconds: float) -> str:
        """Return the band around predicted seconds in words."""
        beside = " beside the programs that run now" * (self.slowdown >= TOLD_SLOWDOWN)
        return (
            f"between {duration(self.least * seconds)} and {duration(self.longest * seconds)} "
            f"nine times of ten{beside}"
        )


# Less slowdown is not worth a word.
TOLD_SLOWDOWN = 1.25

# The expected error of a step's seconds, as a share of them, if no similar call was measured. It
# was 0.21 over 544 layers on the machine where the primitives' efficiencies were measured
# (bench/results/layers-*.json). Other machines differ in caches and clocks.
BUILT_IN_ERROR = 0.3

# A smaller share of a plan's seconds without a measurement is not worth a band.
TOLD_SHARE = 0.1

# The band of jobs on a machine that was never measured. Cores of an EPYC and of two Xeons worked
# 1.0 to 1.5 times the predicted seconds, and an H200 0.9 to 1.2 times. The rest is for processors
# that are further from the nominal rates.
NOT_CALIBRATED = Band(0.7, 2.5)


def band_of(costs: str, runs: Iterable[tuple[Step, float]], slowdown: float) -> Band | None:
    """Return the band of a plan's time; None if measurements of this machine confirm the time.

    Args:
        costs: the source of the predicted times.
        runs: the steps, with the number of times that each runs.
        slowdown: how many times as long a job takes beside the programs that run now.
    """
    share = float(costs.startswith(FLOPS_AND_BYTES))
    if costs.startswith(MEASURED_HERE):
        times = [(n * step.seconds, step) for step, n in runs]
        # A step that says its own seconds is a program of its own, and was measured by itself.
        unsure = (
            seconds
            for seconds, step in times
            if step.error >= BUILT_IN_ERROR and step.cost.seconds is None
        )
        share = sum(unsure) / sum(seconds for seconds, _ in times)
    if share < TOLD_SHARE:
        return None
    return NOT_CALIBRATED.for_share(share)._replace(slowdown=slowdown)
