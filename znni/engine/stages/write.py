"""Writing: the wanted part of a block is converted or labelled, and given to the output.

The output (``volumes/``) compresses it and adds a checksum. A file takes one write at a time, and
the threads that write wait for each other. A pass over the whole output at the end is not of this
stage: see ``last_pass_seconds`` in ``calibration/overhead_figures.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import Compression
from znni.core.shapes import FLOAT_BYTES, Vec3
from znni.engine.block import Block
from znni.engine.block_reader import repeated
from znni.engine.run_state import RunState
from znni.engine.stage_chain import Work
from znni.engine.stages.convert import CONVERTED_TRAFFIC, convert
from znni.machine.handling_times import BESIDE_LAYERS, COPIED_TRAFFIC, HandlingTimes
from znni.machine.io_threads import io_threads_on
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.plans.stage import Counts, Seconds, Setting, StageModel
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

# Traffic of one core, per value, to write it with checksums: 500 to 900 million values a second,
# and 280 to 570 with conversion from float32.
STORED_TRAFFIC = 12

# Traffic of one core, per byte of output that is compressed. Smooth probabilities took 1.3 to 2.9
# ns a byte by zstd and 23 to 28 by gzip, on cores that move 14 GB/s. Threads compress chunks.
PACKED_TRAFFIC: dict[Compression, float] = {"none": 0, "zstd": 25, "gzip": 350}

# Traffic of one core, per file of the output. Chunks of a Zarr took 0.15 to 0.4 ms more each than
# those of HDF5, on the same cores.
FILE_TRAFFIC = 3.5e6


def work(state: RunState, _network: Network) -> Work:
    """Return what writes the wanted part of a block. Values that are None are all 0."""

    def stored(values: NDArray[Any]) -> NDArray[Any]:
        """Return values as they are stored. A GPU may have made labels of them."""
        if state.labels is None:
            return convert(values, state.dtype)
        return values if values.dtype == state.labels.dtype else state.labels.apply(values)

    def zeros(size: Vec3) -> NDArray[Any]:
        """Return zeros as they are stored, which take no memory."""
        labels, maps = state.labels, state.reader.maps
        dtype = labels.dtype if labels else state.dtype
        return np.broadcast_to(
            np.zeros(1, dtype), (labels.features(maps) if labels else maps, *size)
        )

    def write(block: Block) -> None:
        tile, values = block.tile, block.values
        if block.form == "stored":
            stored_values = values
        elif values is None:
            stored_values = zeros(tile.written.size)
        elif block.form == "known":
            stored_values = repeated(stored(values), tile.written_in_patch)
        else:
            stored_values = stored(values[:, *tile.written_in_patch.slices])
        state.output.write(tile.written, stored_values)

    return write


@dataclass(frozen=True)
class WriteModel(StageModel):
    """The bytes and seconds of writing.

    Attributes:
        value: the seconds per value, if nothing else works.
        file: the seconds per file of a block, if it is written as many, likewise.
        lost_value: the seconds per value that computing on the host and writing lose to each other.
        lost_file: the seconds per file, likewise.
    """

    value: float = 0.0
    file: float = 0.0
    lost_value: float = 0.0
    lost_file: float = 0.0

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block."""
        written = each.voxels * self.value + each.files * self.file
        return {"writing": run.maps_written * written}

    def lost(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds that layers on the host lose."""
        lost = each.voxels * self.lost_value + each.files * self.lost_file
        return {"writing": run.maps_written * lost}

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of a block that is written, and of its copies.

        HDF5 makes a copy of float32 values that are not contiguous. The output of a constant input
        may vary with the phase of a tiled network's lattices. Then it is repeated before it is
        copied. Conversion counts the blocks of windows.
        """
        values, itemsize = run.network.out_features * each.voxels, run.itemsize_out
        if run.takes_float32:
            return (FLOAT_BYTES + itemsize) * values
        counted = run.network.window and not run.workers
        if counted or (run.workers and run.stored.label_maps):
            return 0 * each.voxels
        copies = 1 if run.network.alignment.volume == 1 else 2
        return copies * itemsize * values


def model(machine: Machine, stored: Stored, measured: HandlingTimes | None) -> WriteModel:
    """Return the model of writing.

    Labels are few bytes, and take hardly any time to compress.

    Args:
        machine: the machine.
        stored: how values are stored.
        measured: measured times of the machine, if there are any.
    """
    host, itemsize = machine.host, np.dtype(stored.dtype).itemsize
    core, at_once = host.core_bandwidth, io_threads_on(host.threads)
    if measured:
        written = measured.written[stored.dtype]
        value, lost_value = written.seconds, written.working / host.threads
    else:
        value = STORED_TRAFFIC / core / at_once + itemsize / machine.storage.write
        working = STORED_TRAFFIC + CONVERTED_TRAFFIC + itemsize * COPIED_TRAFFIC
        lost_value = BESIDE_LAYERS * working / core / host.threads
    file = (measured and measured.chunks.file) or FILE_TRAFFIC / core
    packed = 0.0 if stored.label_maps else itemsize * PACKED_TRAFFIC[stored.compression] / core
    return WriteModel(
        value + packed / at_once, file, lost_value + packed / host.threads, file / host.threads
    )
