"""How much memory a plan takes of a device, and what for."""

from __future__ import annotations

from dataclasses import dataclass


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
