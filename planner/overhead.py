"""The memory and the time of a run: the sums over its stages, and the costs that come once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

from planner.job_places import (
    AxisPlaces,
    JobPlaces,
    box_read,
    chunks_along,
    read_along,
    voxels_read,
)
from planner.sweep_bound import least_bytes_kept
from znni.core.chunks import chunk_extent
from znni.core.processors import GPU, HOST, DeviceKind
from znni.core.shapes import FLOAT_BYTES, Vec3
from znni.network.geometry import extents_read, input_box, shapes
from znni.network.network import Network
from znni.plans.job_seconds import (
    NOTHING,
    NOTHING_AROUND,
    REPORT_STAGES,
    ReportStage,
    SecondsAround,
    StageSeconds,
)
from znni.plans.stage import Counts, Seconds, Setting, StageModel, larger
from znni.plans.stored_values import AS_COMPUTED, Stored
from znni.plans.totals import Number, PlanMemory, PlanTime

# How many times as long as an even share of the cores lets them, the threads of reading and writing
# wait beside busy layers. A thread that has waited for others gets a core only when a turn of the
# layers ends. It does so a few times for any block, however small, which takes further seconds. On
# two cores, seven kinds of stored volumes took 1.1 to 1.5 times and 5 to 9 ms.
TURNS = 1.4
TURN_SECONDS = 0.007

# A GPU keeps 8 bytes of page tables for each 4 KiB of host memory that is locked for its copies. An
# H200 took 28 MB more with 14 GiB locked, and 70 MB more with 29 GiB.
LOCKED_BYTES_PER_TABLE_BYTE = 512


@dataclass(frozen=True)
class SecondsOnce:
    """The seconds that a run takes once.

    Attributes:
        building: the seconds of any plan before its first patch.
        warming: the extra seconds of any plan during its first patch.
        cuda: the seconds to start a GPU before the first patch, if layers run there.
        resident: the seconds per byte that primitives keep on the host, to make it.
        touched: the seconds per byte of the layers' arrays and workspace on the host, to touch it
            first.
        cold: the extra seconds per byte of host memory that the system never touched before.
        pinned: the seconds per byte of page-locked memory, to allocate it.
        around: the seconds of any plan before building and after its last block.
    """

    building: float = 0.0
    warming: float = 0.0
    cuda: float = 0.0
    resident: float = 0.0
    touched: float = 0.0
    cold: float = 0.0
    pinned: float = 0.0
    around: SecondsAround = NOTHING_AROUND


class Load(NamedTuple):
    """The time and memory that the layers take on one device.

    Attributes:
        seconds: the seconds for one patch.
        resident: the bytes that the primitives keep between patches.
        working: the peak bytes of arrays and workspace.
    """

    seconds: float
    resident: int
    working: int


NO_LOAD = Load(0.0, 0, 0)


@dataclass(frozen=True)
class Overhead:
    """The bytes and seconds of a run beside its layers.

    Attributes:
        process: the bytes of the interpreter, its libraries and compiled code. They include an
            array for the whole output if the run makes one.
        stages: the models of the stages, in the order in which a block goes through them.
        once: the seconds that a run takes once.
        cuda: the host bytes of a GPU's libraries. A run that may use a GPU loads them, even if its
            layers then run on the CPU.
        gpu: the GPU bytes that do not depend on the patch.
        worker: the host bytes of a process that only computes.
        workers: the number of processes that compute on GPUs. With one, the same process also reads
            and writes.
        stored: how values are stored at both ends.
        places: the places of the job's blocks, for each axis; None if they are not known. Then no
            block reaches beyond the volume.
        warm: the host bytes that take no extra seconds to touch first.
        followed: whether another run begins before this one has ended.
    """

    process: int
    stages: tuple[StageModel, ...] = ()
    once: SecondsOnce = SecondsOnce()
    cuda: int = 0
    gpu: int = 0
    worker: int = 0
    workers: int = 1
    stored: Stored = AS_COMPUTED
    places: JobPlaces | None = None
    warm: float = inf
    followed: bool = False

    def setting(
        self, network: Network, devices: Container[DeviceKind], *, host_uses_gpu: bool = False
    ) -> Setting:
        """Return the setting of a run.

        Args:
            network: the network to run.
            devices: the devices that run layers.
            host_uses_gpu: whether layers on the host compute on the GPU.
        """
        on_host, on_gpu = HOST in devices, GPU in devices
        return Setting(network, on_host, on_gpu, host_uses_gpu, self.workers, self.stored)

    def counts(
        self,
        network: Network,
        patch: Vec3,
        *,
        first_input: int = 0,
        handed: int = 0,
        brought: int = 0,
    ) -> Counts[float]:
        """Return the counts of a patch, without the seconds of layers.

        Args:
            network: the network to run.
            patch: its output voxels.
            first_input: the values that the first layers on a GPU take at a time.
            handed: the bytes of the tensor that layers on the host hand on to a GPU.
            brought: the bytes that are copied to the GPU, as float32.
        """
        maps, window = network.in_features, network.window
        blended = network.blended_extents(patch)
        return Counts(
            values_in=maps * extents_read(network, patch).volume,
            voxels=patch.volume,
            row=patch.x,
            blended=blended.volume,
            at_once=network.together * maps * input_box(network, patch).size.volume,
            tail=window.tail(patch) * blended.z * blended.y if window else 0,
            runs=window.a_block(patch) if window else 1.0,
            idle=window.last_without_windows(patch) if window else 0,
            read=maps * voxels_read(network, patch, self.places),
            chunks=prod(map(self.chunks_along, range(3), patch, *box_read(network, patch))),
            files=float(prod(map(self.files_along, patch))),
            first_input=first_input,
            handed=handed,
            brought=brought,
            host_seconds=0.0,
            gpu_seconds=0.0,
            kept=self._kept(network, patch),
        )

    def _kept(self, network: Network, patch: Vec3) -> float:
        """Return the bytes that a sweep keeps at least for the next block."""
        if not network.is_swept:
            return 0.0
        voxels = {name: it.n * it.size.volume for name, it in shapes(network, patch).items()}
        return float(least_bytes_kept(network, voxels, patch))

    def host_blocks(self, run: Setting, each: Counts[Number]) -> Number:
        """Return the bytes of blocks on the host, in all processes together."""
        return sum((it.host_bytes(run, each) for it in self.stages), 0 * each.voxels)

    def gpu_blocks(self, run: Setting, each: Counts[Number]) -> Number:
        """Return the bytes of blocks on a GPU."""
        return sum((it.gpu_bytes(run, each) for it in self.stages), 0 * each.voxels)

    def locked(self, run: Setting, each: Counts[Number]) -> Number:
        """Return the page-locked bytes of a process, from or to which a GPU copies."""
        return sum((it.locked_bytes(run, each) for it in self.stages), 0 * each.voxels)

    def of_host(self, run: Setting, each: Counts[float]) -> PlanMemory:
        """Return the host's memory for a run without its layers' memory."""
        return PlanMemory(
            process=self.process + self.cuda + run.workers * (self.worker + self.cuda),
            weights=(1 + run.workers) * FLOAT_BYTES * run.network.held_parameters,
            resident=0,
            working=0,
            blocks=int(self.host_blocks(run, each)),
        )

    def of_gpu(self, run: Setting, each: Counts[float], locked: int = 0) -> PlanMemory:
        """Return the GPU's memory for a run without its layers' memory.

        Args:
            run: the setting.
            each: the counts of a patch.
            locked: page-locked host bytes beside those of the stages.
        """
        blocks = 0
        if run.on_gpu:
            locked += int(self.locked(run, each))
            blocks = int(self.gpu_blocks(run, each))
        return PlanMemory(
            process=self.gpu + -(-locked // LOCKED_BYTES_PER_TABLE_BYTE),
            weights=0,
            resident=0,
            working=0,
            blocks=blocks,
        )

    def time_of_run(
        self, run: Setting, counts: Counts[float], loads: Mapping[DeviceKind, Load]
    ) -> PlanTime:
        """Return the predicted time of a run, without the times beside busy layers.

        A GPU's memory takes no measurable time to touch first. Its layers do not slow down when the
        host works beside them. If layers on the host use the GPU, host and GPU layers take turns,
        and their times add up.

        Args:
            run: the setting.
            counts: the counts of a patch, without the seconds of layers.
            loads: the load of the layers on each device that runs some.
        """
        host, gpu = loads.get(HOST, NO_LOAD), loads.get(GPU, NO_LOAD)
        each = counts._replace(host_seconds=host.seconds, gpu_seconds=gpu.seconds)
        building, warming = self.seconds_once(run, each, host)
        return PlanTime(
            building,
            warming,
            StageSeconds(**self.seconds(run, each)),
            max(1, run.workers),
            in_turn=run.host_uses_gpu,
            around=self.once.around,
            idle=int(counts.idle),
            followed=self.followed,
        )

    def seconds_once(
        self, run: Setting, each: Counts[Number], host: Load = NO_LOAD
    ) -> tuple[Number, Number]:
        """Return the seconds before the first patch, and its extra seconds.

        Args:
            run: the setting.
            each: the counts of a patch.
            host: the load of the layers on the host.
        """
        once = self.once
        building, warming = 0 * each.voxels + once.building, 0 * each.voxels + once.warming
        if run.on_host:
            building += host.resident * once.resident
            # The reader allocates the input block. The tensor handed on has two places of its own.
            own = larger(host.working - FLOAT_BYTES * each.values_in - each.handed, 0)
            if run.host_uses_gpu:  # the pages are locked before the first patch
                building += own * once.pinned
            else:
                warming += own * once.touched
            beside = self.host_blocks(run, each) + FLOAT_BYTES * run.network.held_parameters
            taken = host.working + host.resident + beside
            warming += larger(taken - self.warm, 0) * once.cold
        if run.uses_gpu:
            building += once.cuda
        if run.on_gpu:
            building += self.locked(run, each) * once.pinned
        return building, warming

    def seconds(self, run: Setting, each: Counts[Number]) -> dict[ReportStage, Number]:
        """Return the seconds of each stage for a patch, or for each of several patches.

        Layers on the host and what handles blocks beside them share the cores. So a patch takes at
        least the time of the layers and what the others work, shared out over all cores.
        """
        seconds_of = _by_stage(0.0 * each.voxels, (it.seconds(run, each) for it in self.stages))
        if run.on_host:
            lost = (it.lost(run, each) for it in self.stages)
            seconds_of["host_layers"] = sum(
                (seconds for by_stage in lost for seconds in by_stage.values()),
                seconds_of["host_layers"],
            )
        return seconds_of

    def beside(self, run: Setting, each: Counts[float]) -> StageSeconds:
        """Return the extra seconds of reading and writing while layers keep all cores busy.

        The threads of reading, writing and the layers share the cores evenly. Reading and writing
        begin when the layers take the next patch. For each second of its own work, reading loses a
        second to the layers, and another one to writing until writing is done. Writing loses as
        much to the layers and to reading. Each also waits for its turns.
        """
        if not run.on_host:
            return NOTHING
        lost = _by_stage(0.0, (it.lost(run, each) for it in self.stages))
        delays = _by_stage(0.0, (it.delays(run, each) for it in self.stages))
        shared = min(lost["reading"], lost["writing"])
        return StageSeconds(
            reading=TURN_SECONDS + TURNS * (lost["reading"] + shared) + delays["reading"],
            writing=TURN_SECONDS + TURNS * (lost["writing"] + shared) + delays["writing"],
        )

    def read_along(self, axis: int, patch: int, start: int, stop: int) -> float:
        """Return how many voxels of the volume a block reads along an axis, on average.

        Args:
            axis: 0 for z, 1 for y and 2 for x.
            patch: the output voxels of a patch along the axis, which is the way between blocks.
            start: the first voxel of ``box_read`` along the axis.
            stop: the voxel after its last.
        """
        return read_along(self.places and self.places[axis], patch, start, stop)

    def chunks_along(self, axis: int, patch: int, start: int, stop: int) -> float:
        """Return how many chunks of the input a block overlaps along an axis, on average.

        It takes the same arguments as ``read_along``.
        """
        known = self.stored.input_chunks
        if known is None:
            return 0.0
        volume = known.volume[axis]
        if self.places is None:
            more = max(0, stop - start - patch)
            places = AxisPlaces(volume, -start, max(1, volume - more), 0, 1)
        else:
            places = self.places[axis]
        return chunks_along(places, patch, start, stop, known.chunk[axis])

    def files_along(self, patch: int) -> int:
        """Return how many files a block is written as along an axis, if its chunks are files."""
        return -(-patch // chunk_extent(patch)) if self.stored.chunk_files else 0


def _by_stage(nothing: Number, parts: Iterable[Seconds[Number]]) -> dict[ReportStage, Number]:
    """Return the sums of seconds by stage, for all stages."""
    sums = dict.fromkeys(REPORT_STAGES, nothing)
    for part in parts:
        for stage, seconds in part.items():
            sums[stage] = sums[stage] + seconds
    return sums
