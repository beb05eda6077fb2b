"""The memory that a run takes beside its layers, on the host and on GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from znni.core.shapes import FLOAT_BYTES, Shape5, Vec3
from znni.machine.machine import Processors
from znni.network.geometry import extents_read, input_box
from znni.network.network import Network
from znni.plans.device_partition import locks_blocks
from znni.plans.totals import Number, Numbers, PlanMemory

# A count for one patch, or for each of several patches.
Count = TypeVar("Count", int, float, Numbers)

RETURNED = 2  # outputs of a GPU on the host: one is copied back, and one is on its way out
MASK_COPIES = 3  # of a block's mask: in the writer, in a message, and in the worker
LABEL_COPIES = 3  # of a block's labels: one computed, one being written, and a copy as it is stored

# A GPU keeps 8 bytes of page tables for each 4 KiB of host memory that is locked for its copies. An
# H200 took 28 MB more with 14 GiB locked, and 70 MB more with 29 GiB.
LOCKED_BYTES_PER_TABLE_BYTE = 512


@dataclass(frozen=True)
class RunMemory:
    """The bytes on host and GPU that a run takes beside its layers.

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
        input_chunk_bytes: the bytes that reading takes for a chunk, of which it needs a part.
        worker: the host bytes of a process that only computes.
        workers: the number of processes that compute on GPUs. With one, the same process also reads
            and writes.
        slots: the number of blocks of each worker that lie in memory which it shares with the
            reader and the writer.
        slot_itemsize_out: the bytes of an output's value there.
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
    input_chunk_bytes: int = 0
    worker: int = 0
    workers: int = 1
    slots: int = 0
    slot_itemsize_out: int = 1

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
        values_in, _ = values_of(network, patch)
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
        _, values_out = values_of(network, patch)
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
        _, values_out = values_of(network, patch)
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
        values_in, values_out = values_of(network, patch)
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
        _, values_out = values_of(network, patch)
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
            values_in, values_out = values_of(network, patch)
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
        self,
        network: Network,
        values_in: Number,
        voxels: Number,
        brought: Number,
        *,
        uses_host: bool,
    ) -> Number:
        """Return the page-locked host bytes that a GPU's layers copy from and to.

        Args:
            network: the network to run.
            values_in: the values of a patch's input block, or of the blocks of several patches.
            voxels: its output voxels, likewise.
            brought: the bytes of a patch that are copied to the GPU.
            uses_host: whether the first layers are on the host.
        """
        taken = 2 * brought if uses_host else self._locked_for_input(network, values_in)
        return self._locked_for_output(network, voxels) + taken

    def _locked_for_input(self, network: Network, values_in: Count) -> Count:
        """Return the host bytes of two blocks for a GPU: one is copied, and one is read."""
        return 2 * self.gpu_itemsize_in * self._locks_input(network) * values_in

    def _locked_for_output(self, network: Network, voxels: Count) -> Count:
        """Return the host bytes of two outputs that a GPU copies back."""
        return RETURNED * self._bytes_returned(network) * voxels


def values_of(network: Network, patch: Vec3) -> tuple[int, int]:
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
