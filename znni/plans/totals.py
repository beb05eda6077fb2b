"""The total memory and time of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from znni.plans.job_seconds import (
    NOTHING,
    NOTHING_AROUND,
    JobSeconds,
    ReportStage,
    SecondsAround,
    StageSeconds,
)

# The stages at which one process works for all workers.
SHARED: tuple[ReportStage, ...] = ("reading", "writing")

# A number for each of several plans.
Numbers: TypeAlias = "NDArray[np.float64]"

# A number for one plan, or for each of several.
Number = TypeVar("Number", float, Numbers)


@dataclass(frozen=True)
class PlanMemory:
    """The peak bytes on a device, by purpose.

    Attributes:
        process: the bytes of the interpreter, its libraries and compiled code. They include an
            array for the whole output if the run makes one. On a GPU, they are the bytes for
            alignment.
        weights: the bytes of the network's parameters.
        resident: the bytes that the primitives keep between patches.
        working: the peak bytes of the layers' arrays and workspace.
        blocks: the bytes of input read ahead, and of output on its way to the volume.
    """

    process: int
    weights: int
    resident: int
    working: int
    blocks: int

    @property
    def total(self) -> int:
        """The most bytes that the run takes."""
        return self.process + self.weights + self.resident + self.working + self.blocks


@dataclass(frozen=True)
class PlanTime:
    """The predicted seconds of a job: once, and for each patch.

    Attributes:
        building: the seconds before the first patch, to load code and transform kernels.
        warming: the extra seconds of the first patch, to load more code and touch memory first.
        patch: the seconds of each patch, by stages. Reading and writing take so long while nothing
            else works. The seconds of the host's layers include those lost to both.
        workers: the number of patches at each stage at a time. But one process reads and writes all
            of them, with all its threads at one patch.
        in_turn: whether the stages of layers, and the transfer between them, take turns. They do if
            layers on the host also compute on the GPU.
        around: the seconds of any job before it builds, and after its last block.
        beside: the extra seconds of each patch that reading and writing take while layers on the
            host keep all cores busy. No job takes longer for them: meanwhile the layers work.
        idle: the last patches for which no layers work, because earlier ones had all windows.
        followed: whether the next job is read while this one computes, and computes while this one
            is written. Then the job takes as long as its slowest stage.
    """

    building: float
    warming: float
    patch: StageSeconds
    workers: int = 1
    in_turn: bool = False
    around: SecondsAround = NOTHING_AROUND
    beside: StageSeconds = NOTHING
    idle: int = 0
    followed: bool = False

    @property
    def valid(self) -> bool:
        """True if no time is negative, and the layers take some time."""
        around = self.around.by_phase().values()
        stages = (*self.patch.by_stage().values(), *self.beside.by_stage().values())
        seconds = (self.building, self.warming, *stages, *around)
        layers = self.patch.host_layers + self.patch.gpu_layers
        return all(isfinite(s) and s >= 0 for s in seconds) and layers > 0 and self.workers >= 1

    @property
    def once(self) -> float:
        """The seconds of a job without its patches."""
        return self.building + self.warming + self.around.total

    def total(self, patches: int) -> float:
        """Return the seconds of a job of so many patches.

        A stage takes a patch as soon as it has handed on the last one. So each patch takes as long
        as its slowest stage. But the first patch passes all stages, one after another. Workers take
        patches in rounds. The last round takes as long as the others, even if some workers have no
        patch. Those that have one wait for each other to read or to write.
        """
        return self.once + self._of_patches(patches)

    def _of_patches(self, patches: int) -> float:
        """Return the seconds of a job's patches, but for what the first takes longer."""
        return max(self._by_group(patches).values())

    @property
    def pace(self) -> StageSeconds:
        """The seconds between two patches that each stage hands on, with all workers together."""
        seconds = self.patch.by_stage().items()
        return StageSeconds(**{stage: s / _at_once(stage, self.workers) for stage, s in seconds})

    @property
    def between(self) -> float:
        """The seconds between two patches of a long job, with all workers together."""
        return max(_grouped(self.pace.by_stage(), in_turn=self.in_turn).values())

    def _by_group(self, patches: int) -> dict[str, float]:
        groups = seconds_by_group(
            self.patch.by_stage(),
            patches,
            self.workers,
            in_turn=self.in_turn,
            idle=self.idle,
            followed=self.followed,
        )
        return {group: float(seconds) for group, seconds in groups.items()}

    def most_counted(self, patches: int, stage: ReportStage) -> int:
        """Return how many times a stage's seconds count in a job, if it sets the pace."""
        return int(_rounds(stage, patches, self.workers))

    def for_job(self, patches: int) -> JobSeconds:
        """Return the seconds of a job of so many patches by stage.

        Seconds of layers, and of the transfer between them, are averages over the workers. The
        first block is read, and the last one written, while nothing else works. A stage never takes
        longer than the time between two patches.
        """
        busy: dict[str, float] = {
            stage: seconds
            + (patches - 1) * min(seconds + self.beside.by_stage()[stage], self.between)
            for stage, seconds in self.pace.by_stage().items()
        }
        if busy["host_layers"]:
            busy["host_layers"] += self.warming
        running = self.warming + self._of_patches(patches)
        return JobSeconds(self.building, running, StageSeconds(**busy), self.around)

    def stage_within(self, total: float, patches: int, stage: ReportStage) -> float:
        """Return the seconds per patch that layers may take, for a job of ``total`` seconds.

        All other stages keep their times. The result is negative if they take more than ``total``.
        """
        without = replace(self, patch=replace(self.patch, **{stage: 0.0}))
        others, left = without._by_group(patches), total - self.once
        own = left - others.pop(_group(stage, in_turn=self.in_turn))
        beside = left - max(others.values())
        if self.followed and beside >= 0:
            beside = inf
        return min(beside, own / _rounds(stage, patches, self.workers))


def seconds_by_group(
    patch: Mapping[ReportStage, Number],
    patches: Number,
    workers: int,
    *,
    in_turn: bool,
    idle: Number,
    followed: bool,
) -> dict[str, Number]:
    """Return the seconds that a job's patches take if a group of stages sets the pace, by group.

    The job takes as long as the slowest group. The first patch passes all stages alone, except in
    a job that is followed by another.

    Stages that take turns are one group. The workers begin one after another, as their first
    patches are read. So they end one after another. If writing takes longer than reading, their
    last patches wait for each other.

    Patches that find all their windows computed are written after the layers have ended.

    Args:
        patch: the seconds of each patch, by stage.
        patches: the number of patches.
        workers: the number of patches at each stage at a time, except for reading and writing.
        in_turn: whether the stages of layers, and the transfer between them, take turns.
        idle: the number of last patches that find all their windows computed.
        followed: whether the next job begins before this one has ended.
    """
    alone = 0 if followed else 1
    first = alone * sum(patch.values())
    seconds = {
        stage: (_rounds(stage, patches, workers) - alone) * taken for stage, taken in patch.items()
    }
    groups = _grouped(seconds, in_turn=in_turn)
    reading, writing = (patch[stage] for stage in SHARED)
    behind = (patches - 1) % workers * np.maximum(reading, writing)
    behind = behind + np.minimum(idle, patches - 1) * writing
    return {group: first + (s if group in SHARED else s + behind) for group, s in groups.items()}


def _rounds(stage: ReportStage, patches: Number, workers: int) -> Number:
    """Return how many patches a stage takes, one after another."""
    return -(-patches // _at_once(stage, workers))


def _at_once(stage: ReportStage, workers: int) -> int:
    """Return the number of patches that a stage takes at a time."""
    return 1 if stage in SHARED else workers


def _grouped(seconds: Mapping[ReportStage, Number], *, in_turn: bool) -> dict[str, Number]:
    """Return the sums of the seconds of stages that take turns."""
    sums: dict[str, Number] = {}
    for stage, taken in seconds.items():
        group = _group(stage, in_turn=in_turn)
        sums[group] = sums[group] + taken if group in sums else taken
    return sums


def _group(stage: ReportStage, *, in_turn: bool) -> str:
    """Return the name of the stages with which a stage takes turns, or its own."""
    return "layers" if in_turn and stage not in SHARED else stage
