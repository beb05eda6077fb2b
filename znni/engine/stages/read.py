"""Reading: a block of the input is fetched, decoded, scaled and padded.

``engine/reading.py`` does it, called by ``engine/block_reader.py``; here is only its model. Some
threads wait for the storage while others convert. So reading takes as long as the slower of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import PAGESIZE

from znni.core.mapped_file import MAPPED_TOGETHER
from znni.core.option_types import Codec, Form
from znni.machine.handling_times import BESIDE_LAYERS, COPIED_TRAFFIC, NONE_MEASURED, HandlingTimes
from znni.machine.io_threads import io_threads_on
from znni.machine.machine import Machine
from znni.plans.stage import Counts, Seconds, Setting, StageModel, larger
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

# Copies of a block as it is stored that reading has room for. One is the whole block, or pieces of
# it. Threads also hold pieces as float32.
COPIES_READ = 2

# Traffic of one core, per value, to read it from the page cache and convert it to float32: 500 to
# 900 million values a second for uint8, 360 to 500 for float32.
READ_TRAFFIC = 18

# Traffic of one core, per byte of the input's chunks that are decoded. Noisy grey levels of 8 bits
# took 4.3 ns by gzip in HDF5, 1.4 ns by zstd in Zarr and 1.9 ns by deflate in TIFF, on cores that
# move 14 GB/s.
DECODED_TRAFFIC: dict[Codec, float] = {"zstd": 20, "gzip": 60, "deflate": 27}

# Traffic of one core, per chunk of the input that a block overlaps, to find and fetch it. Chunks
# of 64 voxels an axis took 0.03 to 0.15 ms in HDF5 and 0.15 to 0.4 ms by zarr-python, on the same
# cores. If a file is mapped, it is the traffic per page, to map it and to give it back: 0.2 to 0.3
# us.
CHUNK_TRAFFIC: dict[Form, float] = {"hdf5": 1e6, "zarr": 4e6, "mapped": 3500}

# Time by which each chunk comes later if layers keep all cores busy. zarr-python hands a chunk from
# thread to thread, each of which waits for its turn on a core: 0.4 to 1.1 ms, on two cores.
CHUNK_DELAY: dict[Form, float] = {"hdf5": 0.0, "zarr": 1e-3, "mapped": 0.0}


@dataclass(frozen=True)
class ReadModel(StageModel):
    """The bytes and seconds of reading.

    Attributes:
        value: the seconds per value, if nothing else works.
        chunk: the seconds per chunk that a block overlaps, to find, fetch and decode it, likewise.
        lost_value: the seconds per value that computing on the host and reading lose to each other.
        lost_chunk: the seconds per chunk, likewise.
        chunk_delay: the further seconds per chunk that reading waits for its turn on a core, if
            computing on the host keeps all of them busy.
    """

    value: float = 0.0
    chunk: float = 0.0
    lost_value: float = 0.0
    lost_chunk: float = 0.0
    chunk_delay: float = 0.0

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block."""
        chunks = run.network.in_features * each.chunks
        return {"reading": each.read * self.value + chunks * self.chunk}

    def lost(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds that layers on the host lose."""
        chunks = run.network.in_features * each.chunks
        return {"reading": each.read * self.lost_value + chunks * self.lost_chunk}

    def delays(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the further seconds beside busy layers."""
        return {"reading": run.network.in_features * each.chunks * self.chunk_delay}

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of the block that is read ahead, and what reading takes beside it.

        A worker's blocks lie in slots. Each of several workers has one block read at a time.
        """
        if run.workers:
            return run.workers * bytes_of_reading(run.stored, each.values_in)
        return run.itemsize_in * each.values_in + bytes_of_reading(run.stored, each.values_in)


def bytes_of_reading(stored: Stored, values: Number) -> Number:
    """Return the bytes that reading a block of so many values takes beside the block.

    Reading decodes as many chunks at once as the second copy has room for, or a single larger one.
    """
    copies = COPIES_READ * stored.input_itemsize * values
    return copies + larger(stored.input_chunk_bytes - copies // 2, 0)


def model(machine: Machine, stored: Stored, measured: HandlingTimes | None) -> ReadModel:
    """Return the model of reading.

    Threads share the chunks of HDF5 and the rows of a mapped file, and decode those of a Zarr. All
    else has one thread: zarr-python hands out the chunks, and decodes those of TIFF.

    Args:
        machine: the machine.
        stored: how values are stored.
        measured: measured times of the machine, if there are any.
    """
    host, itemsize = machine.host, stored.input_itemsize
    core, at_once = host.core_bandwidth, io_threads_on(host.threads)
    if measured:
        largest = measured.read[max(measured.read)]
        read = measured.read.get(itemsize, largest)
        value, lost_value = read.seconds, read.working / host.threads
    else:
        working = (READ_TRAFFIC + itemsize * COPIED_TRAFFIC) / core
        value = max(itemsize / machine.storage.read, working / at_once)
        lost_value = BESIDE_LAYERS * working / host.threads
    known = stored.input_chunks
    if known is None:
        return ReadModel(value, lost_value=lost_value)
    times = measured.chunks if measured else NONE_MEASURED
    chunk = times.chunk.get(known.form, CHUNK_TRAFFIC[known.form] / core)
    if known.form == "mapped":  # of a longer row, the system maps what is near the values
        chunk *= min(itemsize * known.chunk.volume, MAPPED_TOGETHER) / PAGESIZE
    decoded = 0.0
    if known.codec:
        each = times.decoded.get(known.codec, DECODED_TRAFFIC[known.codec] / core)
        decoded = each * itemsize * known.chunk.volume
    alone = 0.0  # the seconds that no other thread shares
    if known.form == "zarr":
        alone += chunk
    if known.codec == "deflate":
        alone += decoded
    return ReadModel(
        value,
        alone + (chunk + decoded - alone) / at_once,
        lost_value,
        (chunk + decoded) / host.threads,
        CHUNK_DELAY[known.form],
    )
