"""Where the time of a job goes, predicted or measured."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class JobSeconds:
    """Seconds of a whole job, by purpose. Reading and writing go on beside the rest.

    Attributes:
        building: the primitives: code loaded, kernels transformed.
        computing: all patches.
        waiting: for a block that was not yet read, or not yet written.
        reading: all blocks of input.
        writing: all blocks of output.
    """

    building: float = 0.0
    computing: float = 0.0
    waiting: float = 0.0
    reading: float = 0.0
    writing: float = 0.0

    @property
    def total(self) -> float:
        """Of the job, from first to last."""
        return self.building + self.computing + self.waiting

    def named(self, prefix: str = "") -> dict[str, float]:
        """Each by its purpose, as ``building_seconds``, for the attributes of a file."""
        return {
            f"{prefix}{field.name}_seconds": getattr(self, field.name) for field in fields(self)
        }
