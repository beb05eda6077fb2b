"""The memory and the time that a run takes beside its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from znni.core.chunks import chunk_extent
from znni.core.options import InputChunks
from znni.core.shapes import FLOAT_BYTES, Box, Shape5, Vec3
from znni.machine.machine import DeviceKind, Processors
from znni.network.geometry import extents_read, input_box
from znni.network.network import Network
from znni.network.window import AxisWindows, Places
from znni.plans.device_partition import locks_blocks
from znni.plans.job_seconds import NOTHING, NOTHING_AROUND, SecondsAround, Stage, StageSeconds
from znni.plans.totals import Number, Numbers, PlanMemory, PlanTime

# A count for one patch, or for each of several patches.
Count = TypeVar("Count", int, float, Numbers)

RETURNED = 2  # outputs of a GPU on the host: one is copied back, and one is on its way out
MASK_COPIES = 3  # of a block's mask: in the writer, in a message, and in the worker
LABEL_COPIES = 3  # of a block's labels: one computed, one being written, and a copy as it is stored

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


class AxisPlaces(NamedTuple):
    """The places of a job's blocks along an axis.

    Attributes:
        volume: the extent of the volume.
        origin: the voxel of the volume at which the input of the network's first output voxel
            begins; negative if that is beyond the volume.
        output: the extent of the output that is wanted.
        first: its first voxel within the whole output of an exact network.
        alignment: the voxels of the whole output at whose multiples blocks begin.
        windows: the windows along the axis, if the network is computed in windows. Then a block
            reads all windows that cover voxels which it writes.
    """

    volume: int
    origin: int
    output: int
    first: int
    alignment: int
    windows: AxisWindows | None = None

    def read(self, patch: int, start: int, stop: int) -> tuple[Places, Places]:
        """Return the first voxel of the volume that each block reads, and the one after its last.

        Args:
            patch: the output voxels of a block.
            start: the first voxel of the input for a block whose first output voxel is 0; any if
                there are windows.
            stop: the voxel after the last; any likewise.
        """
        if self.windows:
            written = self.origin + np.arange(0, self.output, patch)
            ends = (written + patch).clip(max=self.origin + self.output)
            low, high = self.windows.around(written, ends)
            return low.clip(0, self.volume), high.clip(0, self.volume)
        alignment, end = self.alignment, self.first + self.output
        last = max(0, -(-end // alignment) * alignment - patch)  # it is shifted back to there
        begins = np.arange(self.first // alignment * alignment, end, patch).clip(max=last)
        places = begins + self.origin
        return (places + start).clip(0, self.volume), (places + stop).clip(0, self.volume)


# The places of a job's blocks, for each axis.
JobPlaces: TypeAlias = tuple[AxisPlaces, AxisPlaces, AxisPlaces]


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
class Overhead:
    """The bytes on host and GPU that a run takes beside its layers, and the seconds.

    Attributes:
        process: the bytes of the interpreter, its libraries and compiled code. They include an
            array for the whole output if the run makes one.
        voxel_in: the bytes per input voxel and map of a block read ahead.
        voxel_out: the bytes per output voxel and map of blocks that are computed but not written.
        gpu_itemsize_in: the bytes of an input value in a block for layers that are all on a GPU.
            Fewer than 4 are those of a stored value, which the GPU scales.
        voxel_blended: the bytes per output voxel and map of blocks that windows have made, beside
            their sums.
        label_maps: the maps of labels that are stored instead of values; 0: values are stored.
        label_itemsize: the bytes of a label.
        label_piece: the values of maps that become labels at a time, or those of one row.
        cuda: the host bytes of a GPU's libraries. A run that may use a GPU loads them, even if its
            layers then run on the CPU.
        gpu: the GPU bytes that do not depend on the patch.
        gpu_value_in: the GPU bytes per value of the layers' next input.
        gpu_voxel_out: the GPU bytes per output voxel and map, as ``voxel_out`` on the host.
        gpu_itemsize_out: the bytes of an output's value as a GPU gives it.
        handling: the seconds.
        places: the places of the job's blocks, for each axis; None if they are not known. Then no
            block reaches beyond the volume.
        input_chunks: the chunks of the input; None if it has none, or if they are not known.
        chunk_files: whether each chunk of the output is a file.
        input_chunk_bytes: the bytes that reading takes for a chunk, of which it needs a part.
        worker: the host bytes of a process that only computes.
        workers: the number of processes that compute on GPUs. With one, the same process also reads
            and writes.
        slots: the number of blocks of each worker that lie in memory which it shares with the
            reader and the writer.
        slot_itemsize_out: the bytes of an output's value there.
        warm: the host bytes that take no extra seconds to touch first.
    """

    process: int
    voxel_in: int
    voxel_out: int
    gpu_itemsize_in: int = FLOAT_BYTES
    voxel_blended: int = 0
    label_maps: int = 0
    label_itemsize: int = 1
    label_piece: int = 0
    cuda: int = 0
    gpu: int = 0
    gpu_value_in: int = 0
    gpu_voxel_out: int = 0
    gpu_itemsize_out: int = 1
    handling: OverheadSeconds = OverheadSeconds()
    places: JobPlaces | None = None
    input_chunks: InputChunks | None = None
    chunk_files: bool = False
    input_chunk_bytes: int = 0
    worker: int = 0
    workers: int = 1
    slots: int = 0
    slot_itemsize_out: int = 1
    warm: float = inf

    def of_host(
        self, network: Network, patch: Vec3, device: Processors, handed: int = 0
    ) -> PlanMemory:
        """Return the host's memory for a run without its layers' memory.

        Args:
            network: the network to run.
            patch: the output voxels of a patch.
            device: the processors that run its layers.
            handed: the bytes of the tensor that is handed on to a GPU. It has two places; this one
                is read by the GPU. The other one is filled, and counts as the layers' memory.
        """
        values_in, _ = _values(network, patch)
        out = self._bytes_out(network, patch, device)
        # The current block is one of the layers' arrays. If the layers run on a GPU, the host
        # holds it in addition.
        held_in = self.bytes_in(values_in, device)
        if device == "gpu":
            held_in += self.gpu_itemsize_in * values_in
        alone = PlanMemory(
            process=self.process + self.cuda,
            weights=4 * network.held_parameters,
            resident=0,
            working=0,
            blocks=held_in + out + handed,
        )
        if self.processes(device) == 1:
            return alone
        _, values_out = _values(network, patch)
        # Each worker has one block read at a time, into a slot.
        a_slot = values_in * self.itemsize_in(device) + values_out * self.slot_itemsize_out
        each = self.slots * a_slot + self._bytes_of_reading(values_in)
        if network.window:
            each += self._bytes_beside_slots(network, patch)
        else:
            each += self._locked_for_output(network, patch.volume)
        return replace(
            alone,
            process=alone.process + self.workers * (self.worker + self.cuda),
            weights=(1 + self.workers) * alone.weights,
            blocks=self.workers * each + self._bytes_of_writing(network, patch),
        )

    def processes(self, device: Processors) -> int:
        """Return the number of processes of a run: workers on GPUs are beside the first one.

        Args:
            device: the processors that run the layers.
        """
        return 1 if device == "cpu" or self.workers == 1 else 1 + self.workers

    def itemsize_in(self, device: Processors) -> int:
        """Return the bytes of an input value in a block.

        Args:
            device: the processors that run the layers.
        """
        return self.gpu_itemsize_in if device == "gpu" else FLOAT_BYTES

    def bytes_in(self, values: int, device: Processors = "cpu") -> int:
        """Return the host bytes of a block of so many values that is read ahead.

        Args:
            values: the number of values.
            device: the processors that run the layers.
        """
        return self.itemsize_in(device) * values + self._bytes_of_reading(values)

    def _bytes_of_reading(self, values: int) -> int:
        """Return the host bytes that reading a block of so many values takes beside the block.

        These are two copies of it as it is stored. Reading decodes as many chunks at once as the
        second copy has room for, or a single larger one.
        """
        copies = (self.voxel_in - FLOAT_BYTES) * values
        return copies + max(0, self.input_chunk_bytes - max(0, copies // 2))

    def _bytes_of_writing(self, network: Network, patch: Vec3) -> int:
        """Return the host bytes beside the slot while a block of several workers is written.

        One block of all workers is written at a time. Each slot makes labels of windows itself.
        """
        if self.label_maps:
            return 0 if network.window else self._bytes_of_labels(network, patch)
        _, values_out = _values(network, patch)
        return values_out * self.slot_itemsize_out * _copies_written(network)

    def least_bytes_out(self, network: Network) -> int:
        """Return the least host bytes of each output voxel of a patch, computed or stored.

        Windows take the sums of their outputs and weights, and labels are made directly from these.
        """
        if network.window:
            return FLOAT_BYTES * (network.blended_features + 1)
        return self.voxel_out * network.out_features

    def least_bytes_out_on_gpu(self, network: Network) -> int:
        """Return GPU bytes that each output voxel of a patch takes at least."""
        if network.window:
            return FLOAT_BYTES * (network.blended_features + 1)
        return self.gpu_voxel_out * network.out_features

    def _bytes_out(self, network: Network, patch: Vec3, device: Processors) -> int:
        """Return the host bytes of blocks that are computed but not written.

        For windows, these are the input of those computed at once, the sums of outputs and
        weights, and the block's mask. The stored values are made of these before the next block
        begins. A GPU holds the sums and weights itself, and returns the means. It begins the next
        block before that, so there are two masks then.
        """
        values_in, values_out = _values(network, patch)
        window = network.window
        if not window:
            if device == "gpu" and not self.label_maps:
                copies = RETURNED + _copies_written(network)
                return values_out * copies * self.gpu_itemsize_out
            return values_out * self.voxel_out
        seen = max(values_in, _values_at_once(network, patch))
        # Sums for the next block along x lie beside those of the block, and are copied then.
        kept = _kept(network, patch) if device == "cpu" else 0
        a_sum = (network.blended_features + 1) * FLOAT_BYTES
        sums = a_sum * (patch.volume + 2 * kept) + patch.volume
        blending = FLOAT_BYTES * (seen + window.size.volume) + sums
        if self.label_maps:
            return blending + self._bytes_of_labels(network, patch)
        headed = FLOAT_BYTES if network.head else 0
        held = 0 if headed else a_sum * kept  # float32 is written from the array of the sums
        return blending + values_out * (self.voxel_blended + headed) + held

    def _bytes_beside_slots(self, network: Network, patch: Vec3) -> int:
        """Return the host bytes that a worker's blocks of windows take beside its slots.

        The worker has the input of windows, the means of a block and the output that it makes of
        them. For each slot, the writer has the labels. Both have the block's mask, and so has the
        message between them.
        """
        _, values_out = _values(network, patch)
        headed = FLOAT_BYTES if network.head else 0
        means = network.blended_features * patch.volume
        seen = _values_at_once(network, patch)
        apart = FLOAT_BYTES * (seen + means) + values_out * (self.voxel_blended + headed)
        labels = self._bytes_of_labels(network, patch) if self.label_maps else 0
        return apart + self.slots * (MASK_COPIES * patch.volume + labels)

    def _bytes_of_labels(self, network: Network, patch: Vec3) -> int:
        """Return the host bytes of a block's labels, and of the values that become labels."""
        labels = LABEL_COPIES * self.label_maps * self.label_itemsize * patch.volume
        return labels + self._bytes_of_label_piece(network, patch)

    def _bytes_of_label_piece(self, network: Network, patch: Vec3) -> int:
        """Return the bytes that the labels of a piece of a block take beside its maps.

        These are its maps and a copy in NumPy, and indices of eight bytes.
        """
        return 4 * FLOAT_BYTES * max(self.label_piece, network.out_features * patch.x)

    def of_gpu(
        self, network: Network, patch: Vec3, first_input: Shape5 | None, locked: int = 0
    ) -> PlanMemory:
        """Return the GPU's memory for a run without its layers' memory.

        Args:
            network: the network to run.
            patch: the output voxels of a patch.
            first_input: the shape that the first layers on the GPU take at a time. It is None if no
                layers run there and layers of the host use the GPU.
            locked: the host bytes that the GPU copies from and to, without the blocks that its
                layers take and the output that they give.
        """
        blocks = 0
        if first_input:
            values_in, values_out = _values(network, patch)
            out = values_out * self.gpu_voxel_out
            if network.window:
                out = _bytes_of_blending(network, patch)
            labels = self.label_maps * self.label_itemsize * patch.volume
            locked += self._locked_for_output(network, patch.volume)
            locked += self._locked_for_input(network, values_in)
            blocks = first_input.elements * self.gpu_value_in + out + labels
        return PlanMemory(
            process=self.gpu + -(-locked // LOCKED_BYTES_PER_TABLE_BYTE),
            weights=0,
            resident=0,
            working=0,
            blocks=blocks,
        )

    @property
    def _labels_on_gpu(self) -> bool:
        """True if a GPU makes labels of its outputs: in the process that also writes."""
        return bool(self.label_maps) and self.workers == 1

    def _bytes_returned(self, network: Network) -> int:
        """Return the bytes of an output voxel that a GPU copies back."""
        if self._labels_on_gpu:
            return self.label_maps * self.label_itemsize
        if network.window:
            return FLOAT_BYTES * network.blended_features
        return self.gpu_itemsize_out * network.out_features

    def _locks_input(self, network: Network) -> bool:
        """Return whether blocks for a GPU are read into page-locked memory, as slots are not."""
        return self.workers == 1 and locks_blocks(network)

    def locked_of_gpu(
        self, network: Network, counts: Counts[Number], brought: Number, *, uses_host: bool
    ) -> Number:
        """Return the page-locked host bytes that a GPU's layers copy from and to.

        Args:
            network: the network to run.
            counts: the counts of what is in a patch, or in each of several patches.
            brought: the bytes of a patch that are copied to the GPU.
            uses_host: whether the first layers are on the host.
        """
        taken = 2 * brought if uses_host else self._locked_for_input(network, counts.values_in)
        return self._locked_for_output(network, counts.voxels) + taken

    def _locked_for_input(self, network: Network, values_in: Count) -> Count:
        """Return the host bytes of two blocks for a GPU: one is copied, and one is read."""
        return 2 * self.gpu_itemsize_in * self._locks_input(network) * values_in

    def _locked_for_output(self, network: Network, voxels: Count) -> Count:
        """Return the host bytes of two outputs that a GPU copies back."""
        return RETURNED * self._bytes_returned(network) * voxels

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
        values_in, values_out = _values(network, patch)
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
            locked = self.locked_of_gpu(network, counts, float(brought), uses_host=bool(host))
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
        return _read_along(self.places and self.places[axis], patch, start, stop)

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
        return _chunks_along(places, patch, start, stop, known.chunk[axis])

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


@lru_cache(maxsize=2**16)
def _read_along(places: AxisPlaces | None, patch: int, start: int, stop: int) -> float:
    """Return the voxels of the volume that a block reads, averaged over all blocks of a job."""
    if places is None:
        return float(stop - start)
    starts, stops = places.read(patch, start, stop)
    return float((stops - starts).mean())


@lru_cache(maxsize=2**16)
def _chunks_along(places: AxisPlaces, patch: int, start: int, stop: int, chunk: int) -> float:
    """Return the chunks of an extent that a block overlaps, averaged over all blocks of a job."""
    starts, stops = places.read(patch, start, stop)
    return float(np.where(stops > starts, (stops - 1) // chunk - starts // chunk + 1, 0).mean())


def voxels_read(network: Network, patch: Vec3, places: JobPlaces | None) -> float:
    """Return the voxels of the volume that a patch reads, on average over all patches of a job.

    Args:
        network: the network to run.
        patch: the output voxels of a patch.
        places: the places of the job's patches; None if none of them reaches beyond the volume.
    """
    box = box_read(network, patch)
    return prod(map(_read_along, places or 3 * (None,), patch, *box))


def box_read(network: Network, patch: Vec3) -> Box:
    """Return the voxels that are read for a patch whose first output voxel is 0.

    For windows, it is the largest such box. About as much of it lies on each side of the patch.
    """
    if not network.window:
        return input_box(network, patch)
    size = extents_read(network, patch)
    start = (patch - size) // 2
    return Box(start, start + size)


def _values(network: Network, patch: Vec3) -> tuple[int, int]:
    """Return the numbers of values in a patch's input block and in its output block."""
    size_in = extents_read(network, patch)
    return network.in_features * size_in.volume, network.out_features * patch.volume


def _copies_written(network: Network) -> int:
    """Return how many copies of a stored block its writing makes, beside the block.

    The output of a constant input may vary with the phase of an exact network's lattices. Then it
    is repeated before it is copied.
    """
    return 1 if network.alignment.volume == 1 else 2


def _values_at_once(network: Network, patch: Vec3) -> int:
    """Return the values of the input of all windows that are computed at once."""
    return network.together * network.in_features * input_box(network, patch).size.volume


def _kept(network: Network, patch: Vec3) -> int:
    """Return the voxels after a block, along x, whose sums are kept for the next one."""
    return network.window.tail(patch) * patch.z * patch.y if network.window else 0


def _bytes_of_blending(network: Network, patch: Vec3) -> int:
    """Return the bytes of a GPU that blends the windows of blocks.

    These are the sums of a block and of what is kept of it, weights, the means of two blocks, and
    the last layer.
    """
    assert network.window is not None
    sums = (network.blended_features + 1) * (patch.volume + 2 * _kept(network, patch))
    means = 2 * network.blended_features * patch.volume
    head = (network.blended_features + 1) * network.out_features if network.head else 0
    return FLOAT_BYTES * (sums + means + network.window.size.volume + head)
