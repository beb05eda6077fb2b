"""The memory and the time that a plan takes in all."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

from znni.plans.job_seconds import JobSeconds, Stage, StageSeconds


@dataclass(frozen=True)
class PlanMemory:
    """Peak bytes on a device, by purpose.

    Attributes:
        process: the interpreter, its libraries and compiled code, and an array for the whole
            output if the run makes one; on a GPU, what alignment takes.
        weights: the network's parameters.
        resident: what the primitives keep between patches.
        working: the layers' arrays and workspace at their highest.
        blocks: input read ahead, and output on its way to the volume.
    """

    process: int
    weights: int
    resident: int
    working: int
    blocks: int

    @property
    def total(self) -> int:
        """The most that the run will take."""
        return self.process + self.weights + self.resident + self.working + self.blocks


@dataclass(frozen=True)
class PlanTime:
    """Predicted seconds: once for a job, and for each of its patches.

    Attributes:
        building: once, before the first patch: code loaded, kernels transformed.
        warming: once, during the first patch: more code loaded, and the first touch of memory.
        patch: of each patch, by stages.
        workers: how many patches are at each stage at a time, but for writing.
        in_turn: whether no two of the stages of layers, and of transfer between them, work at a
            time: where those on the host compute on the GPU, too.
    """

    building: float
    warming: float
    patch: StageSeconds
    workers: int = 1
    in_turn: bool = False

    @property
    def valid(self) -> bool:
        """Whether these are times: none negative, and the layers take some."""
        seconds = (self.building, self.warming, *self.patch.by_stage().values())
        layers = self.patch.host_layers + self.patch.gpu_layers
        return all(isfinite(s) and s >= 0 for s in seconds) and layers > 0 and self.workers >= 1

    @property
    def once(self) -> float:
        """Seconds that a job takes but for its patches."""
        return self.building + self.warming

    def total(self, patches: int) -> float:
        """Seconds of a job of so many patches.

        Each stage takes a patch when it has handed on its last, so that a patch takes as long as
        the slowest of them; but the first goes through all, one after another. Workers take patches
        in rounds, of which the last takes as long as the others though some have nothing to do.
        """
        return self.once + self.patch.together + max(self._further(patches).values())

    @property
    def pace(self) -> StageSeconds:
        """Seconds from one patch to the next that each stage hands on, whichever worker does."""
        seconds = self.patch.by_stage().items()
        return StageSeconds(**{stage: s / self._at_once(stage) for stage, s in seconds})

    def _at_once(self, stage: Stage) -> int:
        return 1 if stage == "writing" else self.workers

    def _further(self, patches: int) -> dict[str, float]:
        """Seconds of the patches after the first, of stages that work at a time.

        Those that take turns are one, together.
        """
        seconds: dict[str, float] = {}
        for stage, taken in self.patch.by_stage().items():
            group = self._group(stage)
            seconds[group] = seconds.get(group, 0.0) + self._times(stage, patches) * taken
        return seconds

    def _times(self, stage: Stage, patches: int) -> int:
        """How many of the patches after the first a stage takes, one after another."""
        return ceil(patches / self._at_once(stage)) - 1

    def _group(self, stage: Stage) -> str:
        return "layers" if self.in_turn and stage not in ("reading", "writing") else stage

    def of_job(self, patches: int) -> JobSeconds:
        """Where the seconds of a job of so many patches go; those of workers on average."""
        busy: dict[str, float] = {
            stage: patches * seconds for stage, seconds in self.pace.by_stage().items()
        }
        if busy["host_layers"]:
            busy["host_layers"] += self.warming
        return JobSeconds(self.building, self.total(patches) - self.building, StageSeconds(**busy))

    def stage_within(self, total: float, patches: int, stage: Stage) -> float:
        """Seconds that a stage may take of a patch for a job to take so many in ``total``.

        All other stages take what they take; the result is negative where that is more already.
        """
        further, own = self._further(patches), self.patch.by_stage()[stage]
        times = self._times(stage, patches)
        in_turn = further.pop(self._group(stage)) - times * own  # of those it takes turns with
        left = total - self.once - (self.patch.together - own)
        return min(left - max(further.values()), (left - in_turn) / (1 + times))
