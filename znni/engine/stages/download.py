"""Download: a GPU's output is copied to the host, as it is stored, or as means or labels.

``engine/backends/cuda/transfer.py`` does it. The stage that converts means of windows, or labels
them, also copies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from znni.core.shapes import FLOAT_BYTES
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.plans.job_seconds import ReportStage
from znni.plans.stage import Counts, Seconds, Setting, StageModel
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

RETURNED = 2  # outputs of a GPU: one is computed or copied back, and one is on its way out


@dataclass(frozen=True)
class DownloadModel(StageModel):
    """The bytes and seconds of copies from a GPU.

    Attributes:
        byte: the seconds per byte.
    """

    byte: float = 0.0

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block."""
        if not run.on_gpu:
            return {}
        stage: ReportStage = "host_layers" if run.network.window else "transfer"
        return {stage: bytes_returned(run, each) * self.byte}

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of two outputs in the host's memory."""
        if run.network.window or run.takes_float32:
            return 0 * each.voxels
        if run.workers:
            return run.workers * self.locked_bytes(run, each)
        return RETURNED * run.itemsize_back * run.network.out_features * each.voxels

    def locked_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of two outputs that a GPU copies back."""
        return RETURNED * bytes_returned(run, each)

    def gpu_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of two outputs as they are stored. Blending has the means of windows."""
        if run.network.window:
            return 0 * each.voxels
        return RETURNED * run.itemsize_back * run.network.out_features * each.voxels


def bytes_returned(run: Setting, each: Counts[Number]) -> Number:
    """Return the bytes of a block that a GPU copies back."""
    network = run.network
    if run.labels_on_gpu:
        return run.value_bytes * each.voxels
    if network.window:
        return FLOAT_BYTES * network.blended_features * each.blended
    return run.itemsize_back * network.out_features * each.voxels


def model(machine: Machine, _stored: Stored, _measured: HandlingTimes | None) -> DownloadModel:
    """Return the model of the copies from a GPU."""
    link = machine.gpus[0].link if machine.gpus else inf
    return DownloadModel(1 / link)
