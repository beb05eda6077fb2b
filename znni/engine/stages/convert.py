"""Conversion: float32 values become values of the stored type.

A GPU converts its own output, in ``znni/engine/backends/cuda/recombine.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import OutputType
from znni.core.shapes import FLOAT_BYTES
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.plans.stage import Counts, Seconds, Setting, StageModel
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

# Traffic of one core, per value.
CONVERTED_TRAFFIC = 8


def convert(values: NDArray[Any], dtype: OutputType) -> NDArray[Any]:
    """Return values as they are stored: from float32, or as they are already.

    ``uint8`` maps 0..1 to 0..255, and what lies outside to the ends; ``float16`` is infinite
    beyond 65504.
    """
    if values.dtype == dtype:
        return values
    if dtype == "uint8":
        scaled = values * np.float32(255)
        np.rint(scaled, out=scaled)
        return scaled.clip(0, 255, out=scaled).astype(np.uint8)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def bytes_scaled(dtype: OutputType) -> int:
    """Return the bytes of a value that is scaled in float32 before it is converted."""
    return FLOAT_BYTES if dtype == "uint8" else 0


@dataclass(frozen=True)
class ConvertModel(StageModel):
    """The bytes and seconds of conversion.

    Attributes:
        value: the seconds per value; 0 if the measured times of writing include them.
    """

    value: float = 0.0

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block."""
        if (run.on_gpu and run.stored.made_on_gpu) or run.network.window:
            return {}
        return {"writing": run.maps_written * each.voxels * self.value}

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of values that are scaled in float32, and of converted blocks.

        A block of windows is converted as soon as it is blended. One such block is written, with a
        copy, while the next is computed. The last layer's output is float32.
        """
        values = run.network.out_features * each.voxels
        scaled = bytes_scaled(run.stored.dtype)
        if not run.network.window:
            return (scaled if run.takes_float32 else 0) * values
        if run.stored.label_maps:
            return 0 * each.voxels
        converted = 0 if run.stored.dtype == "float32" else run.itemsize_out
        headed = FLOAT_BYTES if run.network.head else 0
        return max(1, run.workers) * (converted + scaled + 2 * run.itemsize_out + headed) * values


def model(machine: Machine, _stored: Stored, measured: HandlingTimes | None) -> ConvertModel:
    """Return the model of conversion."""
    return ConvertModel(0.0 if measured else CONVERTED_TRAFFIC / machine.host.core_bandwidth)
