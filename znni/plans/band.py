"""The band in which a job's time lies, beside its predicted time."""

from __future__ import annotations

from typing import NamedTuple

from znni.core.text import duration

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

    def around(self, seconds: float) -> str:
        """Return the band around predicted seconds in words."""
        beside = " beside the programs that run now" * (self.slowdown >= TOLD_SLOWDOWN)
        return (
            f"between {duration(self.least * seconds)} and {duration(self.longest * seconds)} "
            f"nine times of ten{beside}"
        )


# Less slowdown is not worth a word.
TOLD_SLOWDOWN = 1.25

# The band of jobs on a machine that was never measured. Cores of an EPYC and of two Xeons worked
# 1.0 to 1.5 times the predicted seconds, and an H200 0.9 to 1.2 times. The rest is for processors
# that are further from the nominal rates.
NOT_CALIBRATED = Band(0.7, 2.5)
