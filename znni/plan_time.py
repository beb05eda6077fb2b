"""How long a plan takes, and what for."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from znni.job_seconds import JobSeconds


@dataclass(frozen=True)
class PlanTime:
    """Predicted seconds by purpose: once for a job, or for each of its patches.

    Attributes:
        building: once, before the first patch: code loaded, kernels transformed.
        warming: once, during the first patch: more code loaded, and the first touch of memory.
        reading: of a patch's block of input: fetched, made float32, scaled and padded.
        computing: of a patch: its layers, and their output brought together.
        writing: of a patch's block of output: converted and stored.
    """

    building: float
    warming: float
    reading: float
    computing: float
    writing: float

    @property
    def valid(self) -> bool:
        """Whether these are times: none negative, and computing takes some."""
        seconds = (self.building, self.warming, self.reading, self.computing, self.writing)
        return all(isfinite(s) and s >= 0 for s in seconds) and self.computing > 0

    @property
    def once(self) -> float:
        """Seconds that a job takes but for its patches."""
        return self.building + self.warming

    @property
    def handling(self) -> float:
        """Seconds of the slower of reading and writing a patch, which go on beside computing."""
        return max(self.reading, self.writing)

    def total(self, patches: int) -> float:
        """Seconds of a job of so many patches.

        While one is computed the next is read and the last one written, so that a patch takes as
        long as the slowest of the three. The first is read before, and the last written after all.
        """
        ends = self.reading + self.computing + self.writing
        return self.once + ends + (patches - 1) * max(self.computing, self.handling)

    def of_job(self, patches: int) -> JobSeconds:
        """Where the seconds of a job of so many patches go."""
        computing = self.warming + patches * self.computing
        return JobSeconds(
            building=self.building,
            computing=computing,
            waiting=self.total(patches) - self.building - computing,
            reading=patches * self.reading,
            writing=patches * self.writing,
        )

    def computing_within(self, total: float, patches: int) -> float:
        """Seconds that computing a patch may take for a job to take so many in ``total``.

        All else takes what it takes; the result is negative where that is more already.
        """
        left = total - self.once - self.reading - self.writing
        if left > patches * self.handling:
            return left / patches
        return left - (patches - 1) * self.handling
