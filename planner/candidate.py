"""Candidates for the layers on one device, their memory budget and the time of a job with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeAlias

from planner.choices import Choice
from planner.overhead import Load
from znni.core.shapes import Shape5
from znni.plans.job_seconds import ReportStage
from znni.plans.segments import Segment
from znni.plans.totals import PlanTime

Segments: TypeAlias = tuple[Segment, ...]

# So few that a job's first bytes are among the cheapest, which are warm.
SOME_BYTES = 2**12
# Their seconds are a difference of larger numbers. The result is smaller by this factor.
ROUNDED = 1 - 1e-6

# The bytes that a device's layers may take, given the input that the first segment takes at a time.
MemoryBudget: TypeAlias = Callable[[Shape5], float]


class Candidate(NamedTuple):
    """Segments for the layers of one device, with a chosen primitive for each step.

    Attributes:
        segments: the segments, whose steps are bare.
        choice: the chosen steps.
    """

    segments: Segments
    choice: Choice

    @property
    def decided(self) -> Segments:
        """The segments with the chosen steps."""
        chosen = iter(self.choice.steps)
        return tuple(
            replace(
                segment,
                steps=tuple(islice(chosen, len(segment.steps))),
            )
            for segment in self.segments
        )

    @property
    def load(self) -> Load:
        """The load of the chosen steps on the device."""
        return Load(self.choice.seconds, self.choice.resident, self.choice.peak)


class JobTime(NamedTuple):
    """The time of a job as a function of the load on one device.

    Attributes:
        time: the job's time for a load. It grows with each number of the load.
        stage: the stage of the device's layers.
        patches: the number of patches of the job.
        runs: the runs of the layers for a patch, which may take several windows.
    """

    time: Callable[[Load], PlanTime]
    stage: ReportStage
    patches: int
    runs: float = 1.0

    def seconds(self, load: Load) -> float:
        """Return the seconds of the job for a load."""
        return self.time(load).total(self.patches)

    def layers_within(self, seconds: float, working: int = 0) -> float:
        """Return the seconds that the layers may take at most for a job of ``seconds``.

        Args:
            seconds: the seconds of the job.
            working: the bytes of arrays and workspace that the layers take at least.
        """
        least = self.time(Load(0.0, 0, working))
        beside = least.patch.by_stage()[self.stage]
        return (least.stage_within(seconds, self.patches, self.stage) - beside) / self.runs

    @property
    def byte_seconds(self) -> float:
        """The seconds of the layers that cost a job no more than one resident byte does."""
        nothing, some = self.time(Load(0.0, 0, 0)), self.time(Load(0.0, SOME_BYTES, 0))
        once = (some.once - nothing.once) / SOME_BYTES
        return ROUNDED * once / (nothing.most_counted(self.patches, self.stage) * self.runs)
