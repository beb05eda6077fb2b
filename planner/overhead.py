"""What a run takes beside its layers, in memory, and with them, in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import DeviceKind, Processors
from znni.network.network import Network
from znni.plans.job_seconds import StageSeconds
from znni.plans.totals import PlanMemory, PlanTime

FLOAT_BYTES = 4

# A GPU keeps 8 bytes of page tables for each 4 KiB of the host that are locked for its copies: on
# an H200 28 and 70 MB more than all else were taken with 14 and 29 GiB.
LOCKED_BYTES_PER_TABLE_BYTE = 512


@dataclass(frozen=True)
class OverheadSeconds:
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
        lost_out: per output voxel and map, of the computing that goes on beside the writing.
        placed: per output voxel and map, to bring it to its place in the block on the host.
        pinned: per byte of a tensor that is handed on to a GPU, to have a place for it.
        handed: per byte of such a tensor, to bring it there.
        brought: per byte of a block of input, to bring it there.
        returned: per output voxel and map, to bring it back.
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
    placed: float = 0.0
    pinned: float = 0.0
    handed: float = 0.0
    brought: float = 0.0
    returned: float = 0.0


class Load(NamedTuple):
    """What the layers on a device take.

    Attributes:
        seconds: for one patch.
        resident: bytes that the primitives keep between patches.
        working: bytes of arrays and workspace at their highest.
    """

    seconds: float
    resident: int
    working: int


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
        gpu_value_in: bytes of the GPU per value that its layers take next.
        gpu_voxel_out: as ``voxel_out``, on the GPU.
        handling: the seconds.
        worker: bytes of the host that a process takes which only computes.
        workers: how many processes compute on GPUs; one of them alone reads and writes, too.
        slot_value_in: bytes per value of a block that a worker shares with who reads.
        slot_value_out: bytes per value of an output that it shares with who writes.
    """

    process: int
    voxel_in: int
    voxel_out: int
    cuda: int = 0
    gpu: int = 0
    gpu_value_in: int = 0
    gpu_voxel_out: int = 0
    handling: OverheadSeconds = OverheadSeconds()
    worker: int = 0
    workers: int = 1
    slot_value_in: int = 0
    slot_value_out: int = 0

    def of_host(
        self, network: Network, patch: Vec3, device: Processors, handed: int = 0
    ) -> PlanMemory:
        """The host's memory of a run in patches of that many output voxels, but for its layers'.

        Args:
            network: what is run.
            patch: output voxels.
            device: where its layers run.
            handed: bytes of a tensor that is handed on to a GPU: the one that it takes from, beside
                the one that is made, which is the layers'.
        """
        values_in, values_out = _values(network, patch)
        # The block under way is among the layers' arrays, or, where these are on a GPU, beside it.
        held_in = self.voxel_in + (FLOAT_BYTES if device == "gpu" else 0)
        alone = PlanMemory(
            process=self.process + self.cuda * (device != "cpu"),
            weights=4 * network.parameters,
            resident=0,
            working=0,
            blocks=values_in * held_in + values_out * self.voxel_out + handed,
        )
        if device == "cpu" or self.workers == 1:
            return alone
        # Blocks are read into slots: of the others who reads has only what is stored.
        slots = values_in * (self.voxel_in - FLOAT_BYTES + self.slot_value_in)
        slots += values_out * (self.voxel_out + self.slot_value_out)
        return replace(
            alone,
            process=alone.process + self.workers * (self.worker + self.cuda),
            weights=(1 + self.workers) * alone.weights,
            blocks=self.workers * slots,
        )

    def of_gpu(
        self, network: Network, patch: Vec3, first_input: Shape5 | None, locked: int = 0
    ) -> PlanMemory:
        """The GPU's memory of such a run, but for its layers'.

        Args:
            network: what is run.
            patch: output voxels.
            first_input: what the first layers on the GPU take at a time; None where there are
                none, and layers of the host use it.
            locked: bytes of the host that it copies from and to.
        """
        blocks = 0
        if first_input:
            _, values_out = _values(network, patch)
            blocks = first_input.elements * self.gpu_value_in + values_out * self.gpu_voxel_out
        return PlanMemory(
            process=self.gpu + -(-locked // LOCKED_BYTES_PER_TABLE_BYTE),
            weights=0,
            resident=0,
            working=0,
            blocks=blocks,
        )

    def time_of_run(
        self,
        network: Network,
        patch: Vec3,
        loads: Mapping[DeviceKind, Load],
        brought: int = 0,
        *,
        host_uses_gpu: bool = False,
    ) -> PlanTime:
        """The time of a run in patches of that many output voxels.

        A GPU's memory takes no time that counts before it is used, and its layers lose nothing by
        what the host does beside them.

        Args:
            network: what is run.
            patch: output voxels.
            loads: what the layers take of each device that they are on.
            brought: bytes of a patch that are brought to the GPU.
            host_uses_gpu: whether layers on the host compute on the GPU. Then the two sides take
                turns, and their times add up.
        """
        values_in, values_out = _values(network, patch)
        each = self.handling
        host, gpu = loads.get("cpu"), loads.get("gpu")
        building, warming = each.building, each.warming
        host_layers = transfer = gpu_layers = 0.0
        if host:
            building += host.resident * each.resident
            # The input is a block that was read, and what is handed on has two places of its own.
            own = host.working - FLOAT_BYTES * values_in - (brought if gpu else 0)
            if host_uses_gpu:  # whose pages are locked before
                building += max(0, own) * each.pinned
            else:
                warming += max(0, own) * each.touched
            host_layers = host.seconds + values_in * each.lost_in + values_out * each.lost_out
        if host and gpu:
            building += 2 * brought * each.pinned
        elif host:
            host_layers += values_out * each.placed
        if gpu or host_uses_gpu:
            building += each.cuda
        if gpu:
            transfer = brought * (each.handed if host else each.brought)
            transfer += values_out * each.returned
            gpu_layers = gpu.seconds
        reading, writing = values_in * each.voxel_in, values_out * each.voxel_out
        patch_seconds = StageSeconds(reading, host_layers, transfer, gpu_layers, writing)
        workers = self.workers if gpu or host_uses_gpu else 1
        return PlanTime(building, warming, patch_seconds, workers, in_turn=host_uses_gpu)


def _values(network: Network, patch: Vec3) -> tuple[int, int]:
    """Numbers in a patch's block of input, and in that of its output."""
    size_in = patch + network.field_of_view - 1
    return network.in_features * size_in.volume, network.out_features * patch.volume
