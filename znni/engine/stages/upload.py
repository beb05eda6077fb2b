"""Upload: the input of layers on a GPU is copied there.

``engine/backends/cuda/transfer.py`` does it. If layers on the host come first, their output is
copied. Else it is the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from znni.core.shapes import FLOAT_BYTES
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.network.geometry import cut_for_gpu
from znni.plans.device_partition import locks_blocks
from znni.plans.stage import Counts, Seconds, Setting, StageModel
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

# Traffic of one core, per byte, besides the link to a GPU. With an H200, on a host whose cores move
# 14 GB/s, ordinary memory was copied to the GPU at 6.5 GB/s, and page-locked memory at 55 GB/s.
BROUGHT_TRAFFIC = 1.9


@dataclass(frozen=True)
class UploadModel(StageModel):
    """The bytes and seconds of copies to a GPU.

    Attributes:
        locked: the seconds per byte of page-locked memory.
        ordinary: the seconds per byte of ordinary memory.
    """

    locked: float = 0.0
    ordinary: float = 0.0

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block."""
        if not run.on_gpu:
            return {}
        share = run.itemsize_in / FLOAT_BYTES
        is_locked = run.on_host or _locks_input(run)
        window = run.network.window
        if window:
            share *= window.cut_for_gpu / window.together
        copied = each.runs * share * each.brought
        return {"transfer": copied * (self.locked if is_locked else self.ordinary)}

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of the block that is copied, or of the tensor from the host's layers.

        That tensor has two places. The GPU reads this one. The other one is filled, and counts as
        the layers' memory. A worker's blocks lie in slots.
        """
        if run.workers:
            return 0 * each.voxels
        copied = 0 * each.values_in if run.on_host else each.values_in
        return run.itemsize_in * copied + each.handed

    def locked_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of two inputs: one is copied, and one is read or computed."""
        blocks = 0 if run.on_host or not _locks_input(run) else 2 * run.itemsize_in
        return blocks * each.values_in + 2 * each.handed

    def gpu_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of the first layers' next input.

        Their current input counts as the layers' memory. Of stored values, which take a half or
        less, two inputs are beside the current one. If the GPU makes mirrored copies, the windows
        of two groups lie beside them.
        """
        window = run.network.window
        if window and window.mirrored_by_gpu:
            return 2 * cut_for_gpu(run.network).nbytes + 0 * each.voxels
        return FLOAT_BYTES * each.first_input


def _locks_input(run: Setting) -> bool:
    """Return whether blocks for a GPU are read into page-locked memory, as slots are not."""
    return run.gpus == 1 and locks_blocks(run.network)


def model(machine: Machine, _stored: Stored, _measured: HandlingTimes | None) -> UploadModel:
    """Return the model of the copies to a GPU."""
    link = machine.gpus[0].link if machine.gpus else inf
    return UploadModel(1 / link, 1 / link + BROUGHT_TRAFFIC / machine.host.core_bandwidth)
