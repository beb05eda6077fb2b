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
        most: the upper share.
    """

    least: float
    most: float

    def around(self, seconds: float) -> str:
        """Return the band around predicted seconds in words."""
        return (
            f"between {duration(self.least * seconds)} and {duration(self.most * seconds)} "
            f"nine times of ten"
        )


# The band of jobs on a machine that was never measured. Cores of an EPYC and of two Xeons worked
# 1.0 to 1.5 times the predicted seconds, and an H200 0.9 to 1.2 times. The rest is for processors
# that are further from the nominal rates, and for another program beside the run.
NOT_CALIBRATED = Band(0.7, 2.5)
