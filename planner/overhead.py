"""What a run takes beside its layers: memory, and time."""

from __future__ import annotations

from dataclasses import dataclass

from znni.machine import DeviceKind
from znni.network import Network
from znni.plan_memory import PlanMemory
from znni.plan_time import PlanTime
from znni.shapes import Vec3

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Handling:
    """Seconds that a run takes beside its layers.

    Attributes:
        building: of any plan, before its first patch.
        warming: of any plan, during its first patch.
        cuda: before the first patch, to begin with a GPU, where the layers run there.
        resident: per byte of the host that primitives keep between patches, to make it.
        touched: per byte of the host for arrays and workspace of layers, the first time.
        voxel_in: per input voxel and map of a block read.
        voxel_out: per output voxel and map of a block written.
        lost_in: per input voxel and map, of the computing that goes on beside the reading.
        lost_out: per output voxel and map, of the computing that goes on beside the writing, and
            to bring it to its place in the block.
    """

    building: float = 0.0
    warming: float = 0.0
    cuda: float = 0.0
    resident: float = 0.0
    touched: float = 0.0
    voxel_in: float = 0.0
    voxel_out: float = 0.0
    lost_in: float = 0.0
    lost_out: float = 0.0


@dataclass(frozen=True)
class Overhead:
    """What a run takes beside its layers: bytes of the host and, where they run there, a GPU; time.

    Attributes:
        process: the interpreter, its libraries and compiled code, and an array for the whole
            output if the run makes one.
        voxel_in: bytes per input voxel and map of a block read ahead.
        voxel_out: bytes per output voxel and map of blocks computed and on their way out.
        cuda: bytes of the host that the libraries of a GPU take, where the layers run there.
        gpu: bytes of the GPU, whatever the patch.
        gpu_voxel_in: as ``voxel_in``, on the GPU.
        gpu_voxel_out: as ``voxel_out``, on the GPU.
        handling: the seconds.
    """

    process: int
    voxel_in: int
    voxel_out: int
    cuda: int = 0
    gpu: int = 0
    gpu_voxel_in: int = 0
    gpu_voxel_out: int = 0
    handling: Handling = Handling()

    def of_run(self, network: Network, patch: Vec3, device: DeviceKind = "cpu") -> PlanMemory:
        """The host's memory of a run in patches of that many output voxels, but for its layers'.

        Args:
            network: what is run.
            patch: output voxels.
            device: where its layers run.
        """
        values_in, values_out = _values(network, patch)
        # The block under way is among the layers' arrays, or, where these are on a GPU, beside it.
        held_in = self.voxel_in + (FLOAT_BYTES if device == "gpu" else 0)
        return PlanMemory(
            process=self.process + self.cuda * (device == "gpu"),
            weights=4 * network.parameters,
            resident=0,
            working=0,
            blocks=values_in * held_in + values_out * self.voxel_out,
        )

    def of_gpu(self, network: Network, patch: Vec3) -> PlanMemory:
        """The GPU's memory of such a run, but for its layers'."""
        values_in, values_out = _values(network, patch)
        return PlanMemory(
            process=self.gpu,
            weights=0,
            resident=0,
            working=0,
            blocks=values_in * self.gpu_voxel_in + values_out * self.gpu_voxel_out,
        )

    def time_of_run(
        self,
        network: Network,
        patch: Vec3,
        device: DeviceKind,
        layers: float,
        resident: int,
        working: int,
    ) -> PlanTime:
        """The time of a run in patches of that many output voxels.

        A GPU's memory takes no time that counts before it is used, and what the host does beside
        it, it loses nothing by.

        Args:
            network: what is run.
            patch: output voxels.
            device: where its layers run.
            layers: seconds of all layers, for one patch.
            resident: bytes that the primitives keep between patches.
            working: bytes of the layers' arrays and workspace at their highest.
        """
        values_in, values_out = _values(network, patch)
        seconds = self.handling
        reading, writing = values_in * seconds.voxel_in, values_out * seconds.voxel_out
        if device == "gpu":
            started = seconds.building + seconds.cuda
            return PlanTime(started, seconds.warming, reading, layers, writing)
        touched = max(0, working - FLOAT_BYTES * values_in)  # the input is a block that was read
        return PlanTime(
            building=seconds.building + resident * seconds.resident,
            warming=seconds.warming + touched * seconds.touched,
            reading=reading,
            computing=layers + values_in * seconds.lost_in + values_out * seconds.lost_out,
            writing=writing,
        )


def _values(network: Network, patch: Vec3) -> tuple[int, int]:
    """Numbers in a patch's block of input, and in that of its output."""
    size_in = patch + network.field_of_view - 1
    return network.in_features * size_in.volume, network.out_features * patch.volume
