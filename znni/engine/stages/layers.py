"""Layers: the network's layers compute a block, on the host, on a GPU, or on both.

The backends run them, in ``part_runner.py``. Their memory and seconds are the plan's. This model
has what comes with them: fragments are brought to their places in the block, and threads wait for a
core.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import FLOAT_BYTES
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.plans.job_seconds import ReportStage
from znni.plans.stage import Counts, Seconds, Setting, StageModel
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

# Traffic of one core, per value, to bring fragments to their places: 570 to 1100 million values a
# second.
PLACED_TRAFFIC = 16

# Traffic of memory for each byte that a sweep keeps, at each block: it is copied before the new
# planes and away again, by all cores. One core took 0.36 ns.
CARRIED_TRAFFIC = 6

# Traffic of a GPU's memory for the same: both copies read each byte and write it. On an H200, a
# byte took 1.04 to 1.14 ps.
CARRIED_TRAFFIC_ON_GPU = 4.5

# Time that layers wait for a core at each block, because threads read and write another one. On two
# cores, blocks of 34 to 66 voxels per axis took 2 to 4 ms longer than their bytes explain.
LOST_BLOCK_SECONDS = 0.003


@dataclass(frozen=True)
class LayersModel(StageModel):
    """The bytes and seconds of layers, beside those of their primitives.

    Attributes:
        placed: the seconds per output value to copy it into the block on the host.
        carried: the seconds per byte that a sweep keeps on the host.
        carried_on_gpu: the same on a GPU.
        block: the seconds that computing on the host loses to reading and writing a block, however
            small it is.
    """

    placed: float = 0.0
    carried: float = 0.0
    carried_on_gpu: float = 0.0
    block: float = 0.0

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block."""
        found: dict[ReportStage, Number] = {}
        if run.on_host:
            found["host_layers"] = self.block + each.runs * each.host_seconds
            if not run.on_gpu:
                placed = run.network.out_features * each.voxels
                moved = placed * self.placed + each.kept * self.carried
                found["host_layers"] = found["host_layers"] + moved
        if run.on_gpu:
            carried = each.kept * self.carried_on_gpu
            found["gpu_layers"] = each.runs * each.gpu_seconds + carried
        return found

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of the block that is computed as float32."""
        values = run.network.out_features * each.voxels
        return FLOAT_BYTES * values if run.takes_float32 else 0 * each.voxels


def placed_seconds(machine: Machine, measured: HandlingTimes | None) -> float:
    """Return the seconds per value to bring it to its place."""
    return measured.placed if measured else PLACED_TRAFFIC / machine.host.core_bandwidth


def model(machine: Machine, _stored: Stored, measured: HandlingTimes | None) -> LayersModel:
    """Return the model of what comes with layers."""
    carried = CARRIED_TRAFFIC / machine.host.bandwidth
    on_gpu = CARRIED_TRAFFIC_ON_GPU / machine.gpus[0].bandwidth if machine.gpus else 0.0
    return LayersModel(placed_seconds(machine, measured), carried, on_gpu, LOST_BLOCK_SECONDS)
