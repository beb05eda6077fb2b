"""Resampling: blended values are resampled to the voxels of the output.

``engine/after_blending.py`` does so on the host. A GPU that makes labels resamples before
(``engine/backends/cuda/windows.py``). Values that become labels are resampled piece by piece, and
never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import FLOAT_BYTES
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.plans.stage import Counts, Seconds, Setting, StageModel
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

# Traffic of one core, per resampled value.
RESAMPLED_TRAFFIC = 16

BLOCKS = 2  # of resampled values: one is made, and one is written


@dataclass(frozen=True)
class ResampleModel(StageModel):
    """The bytes and seconds of resampling.

    Attributes:
        value: the seconds per resampled value.
    """

    value: float = 0.0

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block."""
        if not run.resampled or (run.on_gpu and run.labels_on_gpu):
            return {}
        return {"host_layers": run.network.blended_features * each.voxels * self.value}

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of resampled values. Labels count those of a piece."""
        if not run.resampled or run.stored.label_maps:
            return 0 * each.voxels
        values = run.network.blended_features * each.voxels
        return max(1, run.workers) * BLOCKS * FLOAT_BYTES * values


def model(machine: Machine, _stored: Stored, _measured: HandlingTimes | None) -> ResampleModel:
    """Return the model of resampling."""
    return ResampleModel(RESAMPLED_TRAFFIC / machine.host.core_bandwidth / machine.host.threads)
