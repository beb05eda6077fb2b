"""What a run takes beside its layers."""

from __future__ import annotations

from dataclasses import dataclass

from znni.network import Network
from znni.plans import PlanMemory
from znni.shapes import Vec3


@dataclass(frozen=True)
class Overhead:
    """Host bytes that a run takes beside its layers.

    Attributes:
        process: the interpreter, its libraries and compiled code, and an array for the whole
            output if the run makes one.
        voxel_in: bytes per input voxel and map of a block read ahead.
        voxel_out: bytes per output voxel and map of blocks computed and on their way out.
    """

    process: int
    voxel_in: int
    voxel_out: int

    def of_run(self, network: Network, patch: Vec3) -> PlanMemory:
        """The memory of a run in patches of that many output voxels, but for its layers'."""
        voxels_in = network.in_features * (patch + network.field_of_view - 1).volume
        voxels_out = network.out_features * patch.volume
        return PlanMemory(
            process=self.process,
            weights=4 * network.parameters,
            resident=0,
            working=0,
            blocks=voxels_in * self.voxel_in + voxels_out * self.voxel_out,
        )
