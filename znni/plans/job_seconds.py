"""Where the time of a job goes, predicted or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["reading", "host_layers", "transfer", "gpu_layers", "writing"]


@dataclass(frozen=True)
class StageSeconds:
    """Seconds that each stage of a run works, for a patch or for all; none for those it has not.

    Attributes:
        reading: blocks of input: fetched, made float32, scaled and padded.
        host_layers: the layers on the host, and output brought together there.
        transfer: to the GPU, and back.
        gpu_layers: the layers on the GPU, and output brought together there.
        writing: blocks of output: converted and stored.
    """

    reading: float = 0.0
    host_layers: float = 0.0
    transfer: float = 0.0
    gpu_layers: float = 0.0
    writing: float = 0.0

    def __add__(self, other: StageSeconds) -> StageSeconds:
        sums = {name: s + other.by_stage()[name] for name, s in self.by_stage().items()}
        return StageSeconds(**sums)

    def by_stage(self) -> dict[Stage, float]:
        """Each by its stage, in the order in which a patch goes through them."""
        return {
            "reading": self.reading,
            "host_layers": self.host_layers,
            "transfer": self.transfer,
            "gpu_layers": self.gpu_layers,
            "writing": self.writing,
        }

    @property
    def together(self) -> float:
        """Of all, one after another."""
        return sum(self.by_stage().values())

    @property
    def slowest(self) -> float:
        """Of the one that sets the pace where all work at a time."""
        return max(self.by_stage().values())

    @property
    def bottleneck(self) -> Stage:
        """The one that sets the pace."""
        seconds = self.by_stage()
        return max(seconds, key=lambda stage: seconds[stage])


@dataclass(frozen=True)
class JobSeconds:
    """Seconds of a whole job.

    Attributes:
        building: the primitives: code loaded, kernels transformed.
        running: from the first block read to the last one written; where workers compute them, from
            when all are ready: the first blocks are read while they are not.
        busy: of that, how long each stage worked; they work at a time.
    """

    building: float = 0.0
    running: float = 0.0
    busy: StageSeconds = StageSeconds()

    @property
    def total(self) -> float:
        """Of the job, from first to last."""
        return self.building + self.running

    def share(self, stage: Stage) -> float:
        """Of the running time, how much a stage was busy."""
        return self.busy.by_stage()[stage] / self.running if self.running else 0.0

    def __add__(self, other: JobSeconds) -> JobSeconds:
        """Of one job after another."""
        return JobSeconds(
            self.building + other.building, self.running + other.running, self.busy + other.busy
        )

    def named(self, prefix: str = "") -> dict[str, float]:
        """Each by its purpose, as ``building_seconds``, for the attributes of a file."""
        once = {"building": self.building, "running": self.running}
        return {
            f"{prefix}{purpose}_seconds": seconds
            for purpose, seconds in (once | self.busy.by_stage()).items()
        }


def in_words(stage: Stage) -> str:
    """A stage, for reports."""
    return stage.replace("gpu", "GPU").replace("_", " ")
