"""The time of a job by stages, predicted or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["reading", "host_layers", "transfer", "gpu_layers", "writing"]


@dataclass(frozen=True)
class StageSeconds:
    """The seconds that each stage of a run works, for a patch or for all; zero for missing stages.

    Attributes:
        reading: the seconds to fetch blocks of input, make them float32, scale and pad them.
        host_layers: the seconds of the layers on the host, and of joining output there.
        transfer: the seconds of copies to the GPU and back.
        gpu_layers: the seconds of the layers on the GPU, and of joining output there.
        writing: the seconds to convert and store blocks of output.
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
        """Return the seconds by stage, in the order in which a patch passes the stages."""
        return {
            "reading": self.reading,
            "host_layers": self.host_layers,
            "transfer": self.transfer,
            "gpu_layers": self.gpu_layers,
            "writing": self.writing,
        }

    @property
    def together(self) -> float:
        """The sum of all stages, one after another."""
        return sum(self.by_stage().values())

    @property
    def slowest(self) -> float:
        """The seconds of the slowest stage, which sets the pace if all work at the same time."""
        return max(self.by_stage().values())

    @property
    def bottleneck(self) -> Stage:
        """The stage that sets the pace."""
        seconds = self.by_stage()
        return max(seconds, key=lambda stage: seconds[stage])


@dataclass(frozen=True)
class JobSeconds:
    """The seconds of a whole job.

    Attributes:
        building: the seconds to build the primitives: to load code and transform kernels.
        running: the seconds from the first block read to the last block written. If workers compute
            the blocks, it begins when all workers are ready; the first blocks are read before.
        busy: the seconds of the running time that each stage worked. Stages work at the same time.
    """

    building: float = 0.0
    running: float = 0.0
    busy: StageSeconds = StageSeconds()

    @property
    def total(self) -> float:
        """The seconds of the job, from first to last."""
        return self.building + self.running

    def share(self, stage: Stage) -> float:
        """Return the share of the running time that a stage was busy."""
        return self.busy.by_stage()[stage] / self.running if self.running else 0.0

    def __add__(self, other: JobSeconds) -> JobSeconds:
        """Return the seconds of both jobs, one after the other."""
        return JobSeconds(
            self.building + other.building, self.running + other.running, self.busy + other.busy
        )

    def named(self, prefix: str = "") -> dict[str, float]:
        """Return the seconds by name, such as ``building_seconds``, for a file's attributes."""
        once = {"building": self.building, "running": self.running}
        return {
            f"{prefix}{purpose}_seconds": seconds
            for purpose, seconds in (once | self.busy.by_stage()).items()
        }


def in_words(stage: Stage) -> str:
    """Return a stage's name for reports."""
    return stage.replace("gpu", "GPU").replace("_", " ")
