"""The time of a job by stages, predicted or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

# The stages of a report, in the order in which a patch passes them.
ReportStage: TypeAlias = Literal["reading", "host_layers", "transfer", "gpu_layers", "writing"]
REPORT_STAGES: tuple[ReportStage, ...] = get_args(ReportStage)


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
        added = other.by_stage()
        return StageSeconds(**{it: own + added[it] for it, own in self.by_stage().items()})

    def by_stage(self) -> dict[ReportStage, float]:
        """Return the seconds by stage, in the order in which a patch passes the stages."""
        return {stage: self.__dict__[stage] for stage in REPORT_STAGES}

    @property
    def together(self) -> float:
        """The sum of all stages, one after another."""
        return sum(self.by_stage().values())

    @property
    def slowest(self) -> float:
        """The seconds of the slowest stage, which sets the pace if all work at the same time."""
        return max(self.by_stage().values())

    @property
    def bottleneck(self) -> ReportStage:
        """The stage that sets the pace."""
        seconds = self.by_stage()
        return max(seconds, key=lambda stage: seconds[stage])


NOTHING = StageSeconds()

# The phases beside a run, in their order.
Phase: TypeAlias = Literal[
    "start", "importing", "measuring", "planning", "opening", "finishing", "exit"
]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class SecondsAround:
    """The seconds that a user waits beside the run itself; zero for phases that are not known.

    Attributes:
        start: the seconds from the start of the process until the run is asked for: imports.
        planning: the seconds to find the plan.
        opening: the seconds to open input and weights, and to make the output.
        finishing: the seconds to complete the output after its last block.
        exit: the seconds from then to the end of the process.
        importing: the seconds to import and to measure a model of another library, which is done
            once for each model, right after the start.
        measuring: the seconds to measure layers on this machine before a long run, once.
    """

    start: float = 0.0
    planning: float = 0.0
    opening: float = 0.0
    finishing: float = 0.0
    exit: float = 0.0
    importing: float = 0.0
    measuring: float = 0.0

    def __add__(self, other: SecondsAround) -> SecondsAround:
        added = other.by_phase()
        return SecondsAround(**{it: own + added[it] for it, own in self.by_phase().items()})

    def by_phase(self) -> dict[Phase, float]:
        """Return the seconds by phase, in their order."""
        return {phase: self.__dict__[phase] for phase in PHASES}

    @property
    def noted(self) -> float:
        """The seconds that plans take from what runs noted: to start, plan, finish and exit."""
        return self.start + self.planning + self.finishing + self.exit

    @property
    def total(self) -> float:
        """The sum of all phases, which follow each other."""
        return sum(self.by_phase().values())


NOTHING_AROUND = SecondsAround()


@dataclass(frozen=True)
class JobSeconds:
    """The seconds of a whole job.

    Attributes:
        building: the seconds to build the primitives: to load code and transform kernels.
        running: the seconds from when the primitives are built to the last block written. The first
            blocks are read before, while the primitives are built.
        busy: the seconds of the running time that each stage worked. Stages work at the same time.
        around: the seconds before building, and after running.
    """

    building: float = 0.0
    running: float = 0.0
    busy: StageSeconds = StageSeconds()
    around: SecondsAround = NOTHING_AROUND

    @property
    def total(self) -> float:
        """The seconds of the job, from first to last."""
        return self.building + self.running + self.around.total

    def share(self, stage: ReportStage) -> float:
        """Return the share of the running time that a stage was busy."""
        return self.busy.by_stage()[stage] / self.running if self.running else 0.0

    def __add__(self, other: JobSeconds) -> JobSeconds:
        """Return the seconds of both jobs, one after the other."""
        return JobSeconds(
            self.building + other.building,
            self.running + other.running,
            self.busy + other.busy,
            self.around + other.around,
        )

    @property
    def phases(self) -> dict[str, float]:
        """The seconds of all phases by name, in their order. They add up to the total."""
        before = self.around.by_phase()
        after = {phase: before.pop(phase) for phase in ("finishing", "exit")}
        return before | {"building": self.building, "running": self.running} | after

    def named(self, prefix: str = "") -> dict[str, float]:
        """Return the seconds by name, such as ``building_seconds``, for a file's attributes."""
        return {
            f"{prefix}{purpose}_seconds": seconds
            for purpose, seconds in (self.phases | self.busy.by_stage()).items()
        }


def in_words(stage: ReportStage) -> str:
    """Return a stage's name for reports."""
    return stage.replace("gpu", "GPU").replace("_", " ")
