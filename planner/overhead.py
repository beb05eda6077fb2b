"""The memory and the time that a run takes beside its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Generic, NamedTuple

from planner.job_places import (
    AxisPlaces,
    JobPlaces,
    box_read,
    chunks_along,
    read_along,
    voxels_read,
)
from planner.run_memory import RunMemory, values_of
from znni.core.chunks import chunk_extent
from znni.core.options import InputChunks
from znni.core.shapes import FLOAT_BYTES, Vec3
from znni.machine.machine import DeviceKind
from znni.network.network import Network
from znni.plans.job_seconds import NOTHING, NOTHING_AROUND, SecondsAround, Stage, StageSeconds
from znni.plans.totals import Number, PlanTime

# How many times as long as an even share of the cores lets them, the threads of reading and writing
# wait beside busy layers. A thread that has waited for others gets a core only when a turn of the
# layers ends. It does so a few times for any block, however small, which takes further seconds. On
# two cores, seven kinds of stored volumes took 1.1 to 1.5 times and 5 to 9 ms.
TURNS = 1.4
TURN_SECONDS = 0.007


@dataclass(frozen=True)
class OverheadSeconds:
    """The seconds that a run takes beside its layers.

    Attributes:
        building: the seconds of any plan before its first patch.
        warming: the extra seconds of any plan during its first patch.
        cuda: the seconds to start a GPU before the first patch, if layers run there.
        resident: the seconds per byte that primitives keep on the host, to make it.
        touched: the seconds per byte of the layers' arrays and workspace on the host, to touch it
            first.
        cold: the extra seconds per byte of host memory that the system never touched before.
        voxel_in: the seconds per input voxel and map to read a block, if nothing else works.
        voxel_out: the seconds per output voxel and map to write a block, if nothing else works.
        converted_out: the further seconds to convert it before, which the host does if layers run
            there.
        chunk_in: the seconds per chunk of the input that a block overlaps, to find, fetch and
            decode it, likewise.
        lost_chunk_in: the seconds per such chunk that computing on the host and reading lose to
            each other.
        delayed_chunk_in: the further seconds per such chunk that reading waits for its turn on a
            core, if computing on the host keeps all of them busy.
        file_out: the seconds per file of a block, if it is written as many, likewise.
        lost_file_out: the seconds per such file that computing on the host and writing lose to
            each other.
        lost_in: the seconds per input voxel and map that computing on the host and reading lose to
            each other.
        lost_out: the seconds per output voxel and map that computing on the host and writing lose
            to each other.
        lost_block: the seconds that computing on the host loses to reading and writing a block,
            however small it is.
        placed: the seconds per output voxel and map to copy it into the block on the host.
        pinned: the seconds per byte of page-locked memory, to allocate it.
        handed: the seconds per byte of such a tensor, to copy it to the GPU.
        brought: the seconds per byte of a block of input, to copy it to the GPU.
        returned: the seconds per byte of output, to copy it back.
        around: the seconds of any plan before building and after its last block.
    """

    building: float = 0.0
    warming: float = 0.0
    cuda: float = 0.0
    resident: float = 0.0
    touched: float = 0.0
    cold: float = 0.0
    voxel_in: float = 0.0
    voxel_out: float = 0.0
    converted_out: float = 0.0
    chunk_in: float = 0.0
    lost_chunk_in: float = 0.0
    delayed_chunk_in: float = 0.0
    file_out: float = 0.0
    lost_file_out: float = 0.0
    lost_in: float = 0.0
    lost_out: float = 0.0
    lost_block: float = 0.0
    placed: float = 0.0
    pinned: float = 0.0
    handed: float = 0.0
    brought: float = 0.0
    returned: float = 0.0
    around: SecondsAround = NOTHING_AROUND


class Counts(NamedTuple, Generic[Number]):
    """The numbers of values, voxels and runs of a patch, or of each of several patches.

    Attributes:
        values_in: the values of the input block.
        read: those of them that are read from the volume, on average. Others lie beyond its edges.
        voxels: the output voxels.
        runs: how often the layers run.
        chunks: the chunks of the input that a block overlaps, on average.
        files: the files that a block is written as.
    """

    values_in: Number
    read: Number
    voxels: Number
    runs: Number
    chunks: Number
    files: Number


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


@dataclass(frozen=True)
class Overhead(RunMemory):
    """The bytes of a run beside its layers, and the seconds.

    Attributes:
        handling: the seconds.
        places: the places of the job's blocks, for each axis; None if they are not known. Then no
            block reaches beyond the volume.
        input_chunks: the chunks of the input; None if it has none, or if they are not known.
        chunk_files: whether each chunk of the output is a file.
        warm: the host bytes that take no extra seconds to touch first.
    """

    handling: OverheadSeconds = OverheadSeconds()
    places: JobPlaces | None = None
    input_chunks: InputChunks | None = None
    chunk_files: bool = False
    warm: float = inf

    def time_of_run(
        self,
        network: Network,
        patch: Vec3,
        loads: Mapping[DeviceKind, Load],
        brought: int = 0,
        *,
        host_uses_gpu: bool = False,
    ) -> PlanTime:
        """Return the predicted time of a run.

        A GPU's memory takes no measurable time to touch first. Its layers do not slow down when the
        host works beside them.

        Args:
            network: the network to run.
            patch: the output voxels of a patch.
            loads: the load of the layers on each device that runs some.
            brought: the bytes of a patch that are copied to the GPU.
            host_uses_gpu: whether layers on the host compute on the GPU. Then host and GPU layers
                take turns, and their times add up.
        """
        values_in, values_out = values_of(network, patch)
        each = self.handling
        host, gpu = loads.get("cpu"), loads.get("gpu")
        building, warming = each.building, each.warming
        if host:
            building += host.resident * each.resident
            # The reader allocates the input block. The tensor handed on has two places of its own.
            own = host.working - FLOAT_BYTES * values_in - (brought if gpu else 0)
            if host_uses_gpu:  # the pages are locked before the first patch
                building += max(0, own) * each.pinned
            else:
                warming += max(0, own) * each.touched
            blocks = values_in * self.voxel_in + values_out * self.voxel_out
            taken = host.working + host.resident + blocks + FLOAT_BYTES * network.held_parameters
            warming += max(0.0, taken - self.warm) * each.cold
        if gpu or host_uses_gpu:
            building += each.cuda
        seconds: dict[DeviceKind, float] = {kind: load.seconds for kind, load in loads.items()}
        runs = network.window.a_block(patch) if network.window else 1.0
        counts = Counts(
            float(values_in),
            network.in_features * voxels_read(network, patch, self.places),
            float(patch.volume),
            runs,
            prod(map(self.chunks_along, range(3), patch, *box_read(network, patch))),
            float(prod(map(self.files_along, patch))),
        )
        if gpu:
            given = counts.values_in, counts.voxels, float(brought)
            locked = self.locked_of_gpu(network, *given, uses_host=bool(host))
            building += locked * each.pinned
        return PlanTime(
            building,
            warming,
            StageSeconds(**self.stages(network, counts, seconds, float(brought))),
            self.workers if gpu or host_uses_gpu else 1,
            in_turn=host_uses_gpu,
            around=each.around,
            beside=self._beside(network, counts) if host else NOTHING,
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

        The arguments are those of ``read_along``.
        """
        known = self.input_chunks
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
        return -(-patch // chunk_extent(patch)) if self.chunk_files else 0

    def stages(
        self,
        network: Network,
        counts: Counts[Number],
        seconds: Mapping[DeviceKind, Number],
        brought: Number,
    ) -> dict[Stage, Number]:
        """Return the seconds of each stage for a patch, or for each of several patches.

        Layers on the host and what handles blocks beside them share the cores. So a patch takes at
        least the time of the layers and what the others work, shared out over all cores.

        Args:
            network: the network to run.
            counts: the counts of what is in a patch.
            seconds: the seconds of the layers on each device that runs some, for one window or all.
            brought: the bytes of a patch that are copied to the GPU, as float32.
        """
        each, window = self.handling, network.window
        voxels, runs = counts.voxels, counts.runs
        values_out = network.out_features * voxels
        chunks, written, files = self._handled(network, counts)
        host, gpu = seconds.get("cpu"), seconds.get("gpu")
        nothing = 0.0 * voxels
        host_layers = transfer = gpu_layers = nothing
        reading = counts.read * each.voxel_in + chunks * each.chunk_in
        writing = written * each.voxel_out + files * each.file_out
        if host is not None:
            host_layers = each.lost_block + runs * host + sum(self._lost(network, counts))
        if host is not None and gpu is None:
            placed = values_out
            writing = writing + (nothing if window else written * each.converted_out)
            if window:
                placed = placed + runs * (network.blended_features * window.size.volume)
                placed = placed + (values_out if network.head else nothing)
            host_layers = host_layers + placed * each.placed
        if gpu is not None:
            locked = host is not None or self._locks_input(network)
            share = 1.0 if host is not None else self.gpu_itemsize_in / FLOAT_BYTES
            transfer = runs * share * brought * (each.handed if locked else each.brought)
            gpu_layers = runs * gpu
            returning = self._bytes_returned(network) * voxels * each.returned
            if window:  # one stage brings the means and makes what is stored
                applied = network.head and not self._labels_on_gpu
                host_layers = returning + (values_out * each.placed if applied else nothing)
            else:
                transfer = transfer + returning
        return {
            "reading": reading,
            "host_layers": host_layers,
            "transfer": transfer,
            "gpu_layers": gpu_layers,
            "writing": writing,
        }

    def _handled(self, network: Network, counts: Counts[Number]) -> tuple[Number, Number, Number]:
        """Return the chunks that are read, the values that are written, and their files."""
        maps_written = self.label_maps or network.out_features
        return (
            network.in_features * counts.chunks,
            maps_written * counts.voxels,
            maps_written * counts.files,
        )

    def _lost(self, network: Network, counts: Counts[Number]) -> tuple[Number, Number]:
        """Return the seconds that computing on the host loses to reading, and to writing."""
        each, (chunks, written, files) = self.handling, self._handled(network, counts)
        lost_in = counts.read * each.lost_in + chunks * each.lost_chunk_in
        return lost_in, written * each.lost_out + files * each.lost_file_out

    def _beside(self, network: Network, counts: Counts[float]) -> StageSeconds:
        """Return the extra seconds of reading and writing while layers keep all cores busy.

        The threads of all three share the cores evenly. Both begin when the layers take the next
        patch. So each loses what it works itself to the layers, and to the other one as much, until
        one of them is done. It also waits for its turns.
        """
        lost_in, lost_out = self._lost(network, counts)
        chunks, *_ = self._handled(network, counts)
        shared = min(lost_in, lost_out)
        return StageSeconds(
            reading=TURN_SECONDS
            + TURNS * (lost_in + shared)
            + chunks * self.handling.delayed_chunk_in,
            writing=TURN_SECONDS + TURNS * (lost_out + shared),
        )
