"""Blocks of a run that needed no work."""

from __future__ import annotations

from dataclasses import dataclass

from znni.units import counted


@dataclass(frozen=True)
class Skipped:
    """How many blocks were not computed, and why.

    Attributes:
        outside_mask: blocks that no voxel of the mask is in.
        constant: blocks that see one value per map.
    """

    outside_mask: int = 0
    constant: int = 0

    def __str__(self) -> str:
        """In words; empty where there were none."""
        reasons = {"outside the mask": self.outside_mask, "of constant input": self.constant}
        said = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        total = counted(self.outside_mask + self.constant, "block")
        return f"{total} not computed: {', '.join(said)}" * bool(said)
