"""The time and memory of a run outside its layers, which plans are made with.

Seconds are stated as the bytes that one core, or all cores, would move in that time at the nominal
memory bandwidth. They were measured on two cores of an AMD EPYC with AVX-512. There, large copies
reach the full nominal bandwidth. Calibrating a machine replaces some of these figures by measured
ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from mmap import PAGESIZE

import numpy as np

from planner.overhead import Overhead, OverheadSeconds
from znni.calibration.handling_times import NONE_MEASURED, ChunkTimes, HandlingTimes
from znni.calibration.phase_notes import AROUND, Kind, noted, noted_cuda, with_noted
from znni.core.options import AS_COMPUTED, Codec, Compression, Form, Packing, Stored
from znni.core.shapes import FLOAT_BYTES, Vec3
from znni.engine.blended import LABEL_PIECE
from znni.engine.block_bytes import (
    DEVICE_BYTES,
    bytes_per_blended_voxel,
    bytes_per_input_voxel,
    bytes_per_output_voxel,
    device_bytes_per_input_value,
    device_bytes_per_output_voxel,
)
from znni.engine.workers.processes import SLOTS
from znni.machine.io_threads import io_threads_on
from znni.machine.machine import BANDWIDTH_EXPONENT, Machine
from znni.network.input_scaling import Percentiles, ZScore
from znni.network.network import Network
from znni.plans.job_seconds import SecondsAround
from znni.volumes.mapped_array import MAPPED_TOGETHER

# Memory of the interpreter, the libraries and code compiled at first use. It was measured, and has
# a margin that also covers the pieces in which a mask is read.
PROCESS_BYTES = 512 * 2**20

# Additional memory of CUDA, CuPy and the compiler.
CUDA_BYTES = 1024 * 2**20

# Time to start a GPU and load its kernels, which the user's cache may hold. The paper's networks
# took 2.6 to 4.1 s before the first patch; the host's part is counted below.
CUDA_SECONDS = 2.0

# Time to read compiled code from the user's cache. Building took 0.02 to 0.05 s of the networks
# that come with znni, with transforms of kernels. The U-Net's first run in a process took 0.05 s
# more than later ones. Code that was never compiled takes longer, once.
BUILDING_SECONDS = 0.04
WARMING_SECONDS = 0.05

# Time to search for a new plan, until runs have noted their own. It took 0.1 s and more.
SEARCHING_SECONDS = 0.3

# Traffic of all cores, per byte. Spectra of kernels are made at 8 GB/s. Pages are first touched at
# 18 to 21 GB/s.
RESIDENT_TRAFFIC = 2.8
TOUCHED_TRAFFIC = 1.2

# Time that layers wait for a core at each block, because threads read and write another one. On two
# cores, blocks of 34 to 66 voxels per axis took 2 to 4 ms longer than their bytes explain.
LOST_BLOCK_SECONDS = 0.003

# Time per byte of pages that a virtual machine has never touched since it started. Two machines
# took 0.3 to 0.6 GB/s and one 0.8 GB/s. More threads were no faster.
COLD_SECONDS = 1 / 0.5e9

# Traffic of one core, per value, from measured rates in million values a second. Reading from the
# page cache and converting to float32: 500 to 900 for uint8, 360 to 500 for float32. Writing, with
# checksums: 500 to 900, and 280 to 570 with conversion from float32, which a GPU does itself.
# Bringing fragments to their places: 570 to 1100. The system's own copies are extra.
CONVERTED_TRAFFIC = 18
STORED_TRAFFIC = 12
CONVERTED_OUT_TRAFFIC = 8
PLACED_TRAFFIC = 16
COPIED_TRAFFIC = 2  # per byte

# How many times as long a core works on such blocks if layers keep all cores busy. They share
# caches, memory and perhaps one physical core. Blocks of 8 bits took 1.7 to 2.5 ns a value to read
# beside layers, and 2.0 to 2.4 ns to write.
BESIDE_LAYERS = 1.4

# Traffic of one core, per byte of output that is compressed. Smooth probabilities took 1.3 to 2.9
# ns a byte by zstd and 23 to 28 by gzip, on cores that move 14 GB/s. Threads compress chunks.
PACKED_TRAFFIC: dict[Compression, float] = {"none": 0, "zstd": 25, "gzip": 350}

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

# Traffic of one core, per file of the output. Chunks of a Zarr took 0.15 to 0.4 ms more each than
# those of HDF5, on the same cores.
FILE_TRAFFIC = 3.5e6

# Traffic of one core, per byte of a file that is written from the Zarr of all blocks: to copy it,
# and to compress it. TIFF took 5 to 10 ns a byte by deflate and NIfTI 21 to 25 by gzip, on cores
# that move 14 GB/s. Labels take a fifth.
WHOLE_TRAFFIC = 55
PACKED_WHOLE_TRAFFIC: dict[Packing, float] = {"none": 0, "deflate": 100, "gzip": 320}
SHARE_OF_LABELS = 0.2

# Traffic of one core, per value of a Zarr from which coarser resolutions are made at the end. It
# took 4 to 7 ns a value.
COARSER_TRAFFIC = 80

# Time to import zarr-python, and to make the array.
ZARR_SECONDS = 0.35

# Traffic of one core, per byte, besides the link to a GPU. With an H200, on a host whose cores move
# 14 GB/s, ordinary memory was copied to the GPU at 6.5 GB/s. The system locked pages touched before
# at 40 GB/s, and copies from and to them ran at 55 GB/s.
LOCKED_TRAFFIC = 0.35
BROUGHT_TRAFFIC = 1.9

# Traffic of one core, per value and pass, to count it for statistics. Wide values have more than 16
# bits. On two cores of an EPYC they took 12 ns (mean and deviation) and 26 ns (percentiles).
COUNTED_TRAFFIC = 110
COUNTED_TRAFFIC_WIDE: dict[type, int] = {ZScore: 240, Percentiles: 520}


def statistics_seconds(
    network: Network, volume: Vec3, itemsize: int, machine: Machine, each: OverheadSeconds
) -> float:
    """Return the seconds to read a volume for the statistics by which the input is normalized.

    Args:
        network: the network.
        volume: the extents of the volume.
        itemsize: the bytes of one stored value.
        machine: the machine.
        each: the seconds of other work, among them reading.
    """
    scaling, maps = network.scaling, network.in_features
    if scaling.is_fixed:
        return 0.0
    core = _core_bandwidth(machine)
    wide = itemsize > 2
    seconds = maps * each.voxel_in * volume.volume if scaling.has_numbers else 0.0
    for kinds in ((ZScore, Percentiles), (Percentiles,)[: int(wide)]):
        counted = [type(rule) for rule in scaling.of_maps(maps) if isinstance(rule, kinds)]
        if counted:
            traffic = sum(COUNTED_TRAFFIC_WIDE[it] if wide else COUNTED_TRAFFIC for it in counted)
            seconds += max(maps * each.voxel_in, traffic / core) * volume.volume
    return seconds


def last_pass_seconds(network: Network, output: Vec3, machine: Machine, stored: Stored) -> float:
    """Return the seconds of the pass over all finished blocks at the end, if there is one.

    It writes a whole file, or makes coarser resolutions of a Zarr.

    Args:
        network: the network.
        output: the extents of the output.
        machine: the machine.
        stored: how values are stored.
    """
    core = _core_bandwidth(machine)
    if stored.packing is None:
        maps = stored.label_maps or network.out_features
        return COARSER_TRAFFIC / core * maps * output.volume if stored.coarser else 0.0
    packed = PACKED_WHOLE_TRAFFIC[stored.packing]
    if stored.label_maps:
        values, itemsize = stored.label_maps, stored.label_itemsize
        packed *= SHARE_OF_LABELS
    else:
        values, itemsize = network.out_features, np.dtype(stored.dtype).itemsize
    each = (WHOLE_TRAFFIC + packed) / core + 1 / machine.storage.write
    return each * values * itemsize * output.volume


def around_here(around: SecondsAround, kind: Kind, *, searched: bool) -> SecondsAround:
    """Replace seconds of phases by those that runs noted on this machine, where there are notes.

    Args:
        around: the seconds to take where there are no notes.
        kind: the kind of the run.
        searched: whether the plan was searched for, not taken from an earlier search.
    """
    around = with_noted(around, kind)
    if searched:
        searching = noted(kind).searching
        more = SEARCHING_SECONDS if searching is None else searching
        around = replace(around, planning=around.planning + more)
    return around


def cuda_seconds(machine: Machine) -> float:
    """Return the seconds to start a machine's GPUs: as noted, if it is this machine."""
    found = None if machine.absent or not machine.gpus else noted_cuda(machine)
    return CUDA_SECONDS if found is None else found


def run_overhead(
    machine: Machine,
    stored: Stored = AS_COMPUTED,
    measured: HandlingTimes | None = None,
    warm: float = inf,
    cold_share: float = 1.0,
) -> Overhead:
    """Return the overhead of a run outside its layers.

    Args:
        machine: machine that it runs on.
        stored: stored types of input and output values.
        measured: measured times of the machine, if there are any.
        warm: bytes whose first touch takes no extra time.
        cold_share: share of the other bytes whose first touch takes extra time.
    """
    handling = _handling(machine, np.dtype(stored.dtype).itemsize, stored.input_itemsize)
    handling = _chunked(handling, machine, stored, measured.chunks if measured else NONE_MEASURED)
    if measured:
        handling = _as_measured(handling, measured, stored, machine.host.threads)
    handling = _compressed(handling, machine, stored)
    handling = replace(handling, cold=cold_share * handling.cold)
    return Overhead(
        process=PROCESS_BYTES + stored.output_array,
        voxel_in=bytes_per_input_voxel(stored.input_itemsize),
        voxel_out=bytes_per_output_voxel(stored.dtype),
        gpu_itemsize_in=stored.input_itemsize if stored.scaled_on_gpu else FLOAT_BYTES,
        voxel_blended=bytes_per_blended_voxel(stored.dtype),
        label_maps=stored.label_maps,
        label_itemsize=stored.label_itemsize,
        label_piece=LABEL_PIECE,
        cuda=CUDA_BYTES if machine.gpus else 0,
        gpu=DEVICE_BYTES,
        gpu_value_in=device_bytes_per_input_value(),
        gpu_voxel_out=device_bytes_per_output_voxel(stored.dtype),
        gpu_itemsize_out=np.dtype(stored.dtype).itemsize,
        handling=handling,
        input_chunks=stored.input_chunks,
        chunk_files=stored.chunk_files,
        input_chunk_bytes=stored.input_chunk_bytes,
        worker=PROCESS_BYTES,
        workers=machine.used_gpus,
        slots=SLOTS,
        slot_itemsize_out=np.dtype(stored.dtype).itemsize,
        warm=warm,
    )


def _core_bandwidth(machine: Machine) -> float:
    """Return the bytes per second that one core of the host moves, if no other does."""
    host = machine.host
    found: float = host.bandwidth / host.threads**BANDWIDTH_EXPONENT
    return found


def _as_measured(
    nominal: OverheadSeconds, measured: HandlingTimes, stored: Stored, threads: int
) -> OverheadSeconds:
    """Return the seconds, with nominal values replaced by measured ones where there are any."""
    largest = measured.read[max(measured.read)]
    read = measured.read.get(stored.input_itemsize, largest)
    written = measured.written[stored.dtype]
    return replace(
        nominal,
        touched=measured.touched,
        cold=nominal.cold if measured.cold is None else measured.cold,
        placed=measured.placed,
        voxel_in=read.seconds,
        voxel_out=written.seconds,
        converted_out=0.0,  # it is part of writing there
        lost_in=read.working / threads,
        lost_out=written.working / threads,
    )


def _chunked(
    handling: OverheadSeconds, machine: Machine, stored: Stored, measured: ChunkTimes
) -> OverheadSeconds:
    """Return the seconds with those of the input's chunks and of the output's files.

    Threads share the chunks of HDF5 and the rows of a mapped file, and decode those of a Zarr. All
    else has one thread: zarr-python hands out the chunks, and decodes those of TIFF.
    """
    threads = machine.host.threads
    at_once = io_threads_on(threads)
    core = _core_bandwidth(machine)
    file = measured.file or FILE_TRAFFIC / core
    handling = replace(handling, file_out=file, lost_file_out=file / threads)
    known = stored.input_chunks
    if known is None:
        return handling
    chunk = measured.chunk.get(known.form, CHUNK_TRAFFIC[known.form] / core)
    if known.form == "mapped":  # of a longer row, the system maps what is near the values
        chunk *= min(stored.input_itemsize * known.chunk.volume, MAPPED_TOGETHER) / PAGESIZE
    decoded = 0.0
    if known.codec:
        each = measured.decoded.get(known.codec, DECODED_TRAFFIC[known.codec] / core)
        decoded = each * stored.input_itemsize * known.chunk.volume
    alone = 0.0  # the seconds that no other thread shares
    if known.form == "zarr":
        alone += chunk
    if known.codec == "deflate":
        alone += decoded
    lost = (chunk + decoded) / threads
    return replace(
        handling,
        chunk_in=alone + (chunk + decoded - alone) / at_once,
        lost_chunk_in=lost,
        delayed_chunk_in=CHUNK_DELAY[known.form],
    )


def _compressed(handling: OverheadSeconds, machine: Machine, stored: Stored) -> OverheadSeconds:
    """Return the seconds with those of compression, which all threads share.

    Labels are few bytes, and take hardly any.
    """
    host, itemsize = machine.host, np.dtype(stored.dtype).itemsize
    core = _core_bandwidth(machine)
    if stored.label_maps:
        return handling
    taken = itemsize * PACKED_TRAFFIC[stored.compression] / core
    return replace(
        handling,
        voxel_out=handling.voxel_out + taken / io_threads_on(host.threads),
        lost_out=handling.lost_out + taken / host.threads,
    )


def _handling(machine: Machine, output_itemsize: int, input_itemsize: int) -> OverheadSeconds:
    """Return the seconds per unit of each kind of work.

    Threads read and write beside one computing thread per core. While they work, and do not wait
    for the storage, computing loses that time.

    Some threads wait for the storage while others convert. So reading takes as long as the slower
    of both. But a file takes one write at a time, and the threads that write wait for each other.
    """
    host, storage = machine.host, machine.storage
    threads = io_threads_on(host.threads)
    link = machine.gpus[0].link if machine.gpus else inf
    core = _core_bandwidth(machine)
    converted, stored = CONVERTED_TRAFFIC / core, STORED_TRAFFIC / core
    converted_out = CONVERTED_OUT_TRAFFIC / core
    copied = COPIED_TRAFFIC / core
    taken_in = converted + input_itemsize * copied
    return OverheadSeconds(
        building=BUILDING_SECONDS,
        warming=WARMING_SECONDS,
        cuda=cuda_seconds(machine),
        resident=RESIDENT_TRAFFIC / host.bandwidth,
        touched=TOUCHED_TRAFFIC / host.bandwidth,
        cold=COLD_SECONDS,
        voxel_in=max(input_itemsize / storage.read, taken_in / threads),
        voxel_out=stored / threads + output_itemsize / storage.write,
        converted_out=converted_out,
        lost_in=BESIDE_LAYERS * taken_in / host.threads,
        lost_out=BESIDE_LAYERS * (stored + converted_out + output_itemsize * copied) / host.threads,
        lost_block=LOST_BLOCK_SECONDS,
        placed=PLACED_TRAFFIC / core,
        pinned=TOUCHED_TRAFFIC / host.bandwidth + LOCKED_TRAFFIC / core,
        handed=1 / link,
        brought=1 / link + BROUGHT_TRAFFIC / core,
        returned=1 / link,
        around=AROUND,
    )
