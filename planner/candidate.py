"""A way to run layers on one device, the room that it has, and what a job then takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeAlias

from planner.choices import Choice
from planner.overhead import Load
from znni.core.shapes import Shape5
from znni.plans.job_seconds import Stage
from znni.plans.segments import Segment
from znni.plans.totals import PlanTime

Segments: TypeAlias = tuple[Segment, ...]

# Bytes for the layers of a device, where the first segment takes so much of the input at a time.
MemoryBudget: TypeAlias = Callable[[Shape5], float]


class Candidate(NamedTuple):
    """Segments, and the choice of a step for each of theirs."""

    segments: Segments
    choice: Choice

    @property
    def decided(self) -> Segments:
        """The segments with these steps."""
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
        """What it takes."""
        return Load(self.choice.seconds, self.choice.resident, self.choice.peak)


class JobTime(NamedTuple):
    """What a job takes, by what its layers on one device do.

    Attributes:
        time: of the job, by what they take; it grows with each of these.
        stage: theirs.
        patches: of the job.
    """

    time: Callable[[Load], PlanTime]
    stage: Stage
    patches: int

    def seconds(self, load: Load) -> float:
        """Of the job."""
        return self.time(load).total(self.patches)

    def layers_within(self, seconds: float) -> float:
        """Seconds of a patch's layers below which the job may take less than so many."""
        least = self.time(Load(0.0, 0, 0))
        beside = least.patch.by_stage()[self.stage]
        return least.stage_within(seconds, self.patches, self.stage) - beside
