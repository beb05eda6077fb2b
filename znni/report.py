"""What a run tells of itself, to its user and in its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from znni.plans import Plan
from znni.units import counted, duration, in_units


@dataclass(frozen=True)
class Report:
    """How a run went.

    Attributes:
        plan: what was run.
        voxels: output voxels.
        seconds: wall time, from preparing the primitives to the last block written.
        preparing: the part of it that went into compiling code and transforming kernels.
        peak_memory: the process's peak resident bytes.
        attributes: how the output came to be, as stored with it.
        accuracy_note: what is to be said of its accuracy, if it is not float32 as a matter of
            course.
    """

    plan: Plan
    voxels: int
    seconds: float
    preparing: float
    peak_memory: int
    attributes: dict[str, Any]
    accuracy_note: str

    def __str__(self) -> str:
        accuracy = f"; accuracy {self.accuracy_note}" if self.accuracy_note else ""
        return (
            f"{counted(self.voxels, 'voxel')} in {duration(self.seconds)}, "
            f"{duration(self.preparing)} of them to compile and prepare: "
            f"{self.voxels / self.seconds:,.0f} voxels/s with that and the first touch of memory, "
            f"{self.plan.voxels_per_second:,.0f} +- {self.plan.error:.0%} predicted without "
            f"({self.plan.costs}); peak memory "
            f"{in_units(self.peak_memory)} ({in_units(self.plan.memory.total)} promised){accuracy}"
        )
