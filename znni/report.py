"""How a run went, beside what was predicted of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Any

from znni.job_seconds import JobSeconds
from znni.plans import Plan
from znni.skipped import Skipped
from znni.text_table import aligned
from znni.units import counted, duration, in_units


@dataclass(frozen=True)
class Report:
    """How a run went.

    Attributes:
        plan: what was to be run.
        fallbacks: the plans that went on where memory ran out, first to last.
        voxels: output voxels that the run computed.
        time: where the wall time went, from preparing the primitives to the last block written.
        peak_memory: the process's peak resident bytes.
        attributes: how the output came to be, as stored with it.
        accuracy_note: what is to be said of its accuracy, if it is not float32 as a matter of
            course.
        finished_before: output voxels that earlier runs left, which this one went on from.
        skipped: blocks that needed no work.
    """

    plan: Plan
    fallbacks: tuple[Plan, ...]
    voxels: int
    time: JobSeconds
    peak_memory: int
    attributes: dict[str, Any]
    accuracy_note: str
    finished_before: int = 0
    skipped: Skipped = field(default_factory=Skipped)

    @property
    def seconds(self) -> float:
        """Wall time."""
        return self.time.total

    def __str__(self) -> str:
        """What happened, in a line, and a table of what was measured and predicted."""
        said = [f"{counted(self.voxels, 'voxel')} in {duration(self.seconds)}"]
        if self.finished_before:
            said.append(f"{counted(self.finished_before, 'voxel')} were finished before")
        if self.fallbacks:
            said.append(f"memory ran out {counted(len(self.fallbacks), 'time')}")
        if skipped := str(self.skipped):
            said.append(skipped)
        if self.accuracy_note:
            said.append(f"accuracy {self.accuracy_note}")
        predicted = f"predicted from {self.plan.costs}, the time +- {self.plan.error:.0%}"
        lines = ["; ".join([*said, predicted]), *aligned(self._rows(), left=1)]
        return "\n".join(map(str.rstrip, lines))

    def _rate(self, time: JobSeconds) -> str:
        return f"{self.voxels / time.total:,.0f}" if self.voxels else ""

    def _rows(self) -> list[tuple[str, ...]]:
        share = self.voxels / (self.voxels + self.finished_before)
        expected = self.plan.time.of_job(ceil(share * self.plan.patches))
        promised, on_gpu = self.plan.memory.total, self.plan.gpu_memory
        return [
            ("", "measured", "predicted"),
            ("voxels/s", *map(self._rate, (self.time, expected))),
            ("time", duration(self.time.total), duration(expected.total)),
            ("  building", duration(self.time.building), duration(expected.building)),
            ("  computing", duration(self.time.computing), duration(expected.computing)),
            ("  waiting", duration(self.time.waiting), duration(expected.waiting)),
            ("beside that", "", ""),
            ("  reading", duration(self.time.reading), duration(expected.reading)),
            ("  writing", duration(self.time.writing), duration(expected.writing)),
            ("peak memory", in_units(self.peak_memory), in_units(promised)),
            *([("GPU memory", "", in_units(on_gpu.total))] if on_gpu else []),
        ]
