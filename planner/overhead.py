"""What a run takes beside its layers."""

from __future__ import annotations

from dataclasses import dataclass

from znni.machine import DeviceKind
from znni.network import Network
from znni.plan_memory import PlanMemory
from znni.shapes import Vec3


@dataclass(frozen=True)
class Overhead:
    """Bytes that a run takes beside its layers: of the host, and of a GPU where they run there.

    Attributes:
        process: the interpreter, its libraries and compiled code, and an array for the whole
            output if the run makes one.
        voxel_in: bytes per input voxel and map of a block read ahead.
        voxel_out: bytes per output voxel and map of blocks computed and on their way out.
        cuda: bytes of the host that the libraries of a GPU take, where the layers run there.
        gpu: bytes of the GPU, whatever the patch.
        gpu_voxel_in: as ``voxel_in``, on the GPU.
        gpu_voxel_out: as ``voxel_out``, on the GPU.
    """

    process: int
    voxel_in: int
    voxel_out: int
    cuda: int = 0
    gpu: int = 0
    gpu_voxel_in: int = 0
    gpu_voxel_out: int = 0

    def of_run(self, network: Network, patch: Vec3, device: DeviceKind = "cpu") -> PlanMemory:
        """The host's memory of a run in patches of that many output voxels, but for its layers'.

        Args:
            network: what is run.
            patch: output voxels.
            device: where its layers run.
        """
        voxels_in = network.in_features * (patch + network.field_of_view - 1).volume
        voxels_out = network.out_features * patch.volume
        return PlanMemory(
            process=self.process + self.cuda * (device == "gpu"),
            weights=4 * network.parameters,
            resident=0,
            working=0,
            blocks=voxels_in * self.voxel_in + voxels_out * self.voxel_out,
        )

    def of_gpu(self, network: Network, patch: Vec3) -> PlanMemory:
        """The GPU's memory of such a run, but for its layers'."""
        voxels_in = network.in_features * (patch + network.field_of_view - 1).volume
        voxels_out = network.out_features * patch.volume
        return PlanMemory(
            process=self.gpu,
            weights=0,
            resident=0,
            working=0,
            blocks=voxels_in * self.gpu_voxel_in + voxels_out * self.gpu_voxel_out,
        )
