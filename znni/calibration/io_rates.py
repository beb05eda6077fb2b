"""Measuring a run's work outside its layers: first touching memory, and handling blocks.

The functions that runs use are timed, on files in the system's temporary folder. As in a run, each
is timed on memory, or on a part of a file, that it has not seen before. Their processor time counts
beside threads that compute, as layers do: two cores that work share caches and memory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, Self, get_args

import numpy as np
import psutil
from numpy.typing import NDArray

from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.handling_times import READ, ChunkTimes, HandlingTimes, SecondsPerValue
from znni.core.chunks import CHUNK, chunk_extents
from znni.core.options import Codec, Form, InputChunks, OutputType
from znni.core.shapes import Box, Vec3, offsets
from znni.core.volume import NewOutput
from znni.engine.host_layers import place
from znni.engine.pipeline import convert
from znni.engine.reading import read_input
from znni.engine.tiles import make_job, tiles
from znni.machine.arena import map_pages
from znni.machine.cold_pages import note_warm, warm_bytes
from znni.machine.machine import Machine
from znni.network.geometry import input_box
from znni.network.layers import Conv
from znni.network.network import Network
from znni.primitives.cpu.common.workers import workers
from znni.volumes.formats import library

REPEATS = 5
BLOCKS = 2 * REPEATS  # each second one is handled beside threads that compute
TOUCHED_BYTES = 2**27

# Memory beyond what is warm that is touched to measure it, and how much at a time. Only the later
# half counts: some more may be warm, which programs freed just before.
COLD_BYTES = 2**31
COLD_STEP = 2**27

BLOCK = Vec3(128, 128, 128)

# Seconds of a difference at least, which may be disturbed.
LEAST = 1e-12

# Values that a thread takes at a time, to compute beside what is measured: about a millisecond.
COMPUTED_VALUES = 2**20

# A block of planes has so many times fewer of them, and is so many times as long along y and x.
FLATTER, WIDER = 16, 4

# Output that is brought together from fragments: so much that its memory is new each time. The
# stride is the pooling of the fragments: the paper's networks pool by 4 or 8 per axis.
MAPS = 8
STRIDE = Vec3(8, 8, 8)


def calibrate_handling(machine: Machine, *, forget: bool) -> HandlingTimes:
    """Measure this machine, and keep the results.

    Args:
        machine: this machine, with the threads that runs will have.
        forget: first delete earlier measurements.

    Returns:
        The median of all measurements that are kept.

    Raises:
        InvalidInput: the database cannot be used.
    """
    database, here = CostDatabase(), Conditions.of(machine.host)
    if forget:
        database.forget_rates(here)
    database.add_rates(here, measure_handling(machine.host.threads).rates())
    return HandlingTimes.of_rates(database.rates(here))


def measure_handling(threads: int, block: Vec3 = BLOCK) -> HandlingTimes:
    """Measure for a few seconds.

    Args:
        threads: threads that compute.
        block: extents of the handled blocks; multiples of 16.
    """
    dtypes: tuple[OutputType, ...] = get_args(OutputType)
    with tempfile.TemporaryDirectory(prefix="znni-") as made:
        folder = Path(made)
        values = _noise(block)
        read: dict[int, SecondsPerValue] = {}
        for size, dtype in READ.items():
            path = folder / f"{size}.h5"
            _make_hdf5(path, values.astype(dtype))
            read[size], _ = _read(path, block, threads)
        written = {
            dtype: _written(folder / f"{dtype}.h5", dtype, block, threads) for dtype in dtypes
        }
        chunks = _of_chunks(folder, block, values, read[1], written["uint8"], threads)
        return HandlingTimes(_touched(threads), _placed(block), read, written, _cold(), chunks)


def _of_chunks(
    folder: Path,
    block: Vec3,
    values: NDArray[np.uint8],
    read: SecondsPerValue,
    written: SecondsPerValue,
    threads: int,
) -> ChunkTimes:
    """Measure chunks of values of 8 bits.

    Args:
        folder: where files are made.
        block: extents of the handled blocks.
        values: the values of all blocks, which are read.
        read: seconds per value of a block without chunks.
        written: seconds per value of a block that is written to one file.
        threads: threads that compute.
    """
    extents = tuple(block.minimum(Vec3.of(CHUNK)))
    flat = Vec3(block.z // FLATTER, WIDER * block.y, WIDER * block.x)
    chunk: dict[Form, float] = {}
    decoded: dict[Codec, float] = {}

    def note(path: Path, block: Vec3) -> None:
        """Note what is left of the seconds when those that are known by now are subtracted."""
        taken, known = _read(path, block, threads)
        assert known is not None
        more = (taken.working - read.working) * known.chunk.volume
        if known.codec is None:
            chunk[known.form] = max(more, LEAST)
        else:
            more -= chunk[known.form]
            decoded[known.codec] = max(more / known.chunk.volume, LEAST)

    _make_hdf5(folder / "chunks.h5", values, chunks=extents)
    note(folder / "chunks.h5", block)
    _make_hdf5(folder / "gzip.h5", values, chunks=extents, compression="gzip")
    note(folder / "gzip.h5", block)
    if find_spec("zarr") is None:
        return ChunkTimes(chunk, decoded)
    for name, compressors in {"chunks.zarr": None, "zstd.zarr": "auto"}.items():
        library("zarr", "zarr").create_array(
            folder / name, data=values, chunks=extents, compressors=compressors
        )
        note(folder / name, block)
    if find_spec("tifffile") is not None:
        library("tifffile", "tiff").imwrite(
            folder / "planes.tif",
            values.reshape(flat * Vec3(BLOCKS, 1, 1)),
            metadata={"axes": "ZYX"},
            compression="deflate",
        )
        note(folder / "planes.tif", flat)
    more = _written(folder / "files.zarr", "uint8", block, threads).working - written.working
    return ChunkTimes(chunk, decoded, max(more * chunk_extents(block, block).volume, LEAST))


def _noise(block: Vec3) -> NDArray[np.uint8]:
    """Return grey levels of all blocks, which compress about as badly as images do."""
    drawn = np.random.default_rng(0).standard_normal(block * Vec3(BLOCKS, 1, 1), np.float32)
    return (drawn * 25 + 128).clip(0, 255).astype(np.uint8)


def _cold() -> float | None:
    """Return the extra seconds per byte of memory that this virtual machine never touched.

    All memory that is known to be warm is taken first. The result is None if that is more than half
    of the memory, or if the machine is not virtual.
    """
    warm = warm_bytes()
    if warm + COLD_BYTES > psutil.virtual_memory().available / 2:
        return None
    held: list[NDArray[np.uint8]] = []
    times: list[float] = []
    while len(held) * COLD_STEP < warm + COLD_BYTES:
        pages = np.frombuffer(map_pages(COLD_STEP), np.uint8)
        held.append(pages)
        times.append(_extra_of_first(partial(pages.fill, 1)))
    note_warm(len(held) * COLD_STEP)
    return median(times[-(COLD_BYTES // COLD_STEP // 2) :]) / COLD_STEP


def _extra_of_first(fill: Callable[[], object]) -> float:
    """Fill memory twice; return the seconds by which the first time was longer."""
    start = time.perf_counter()
    fill()
    between = time.perf_counter()
    fill()
    first, again = between - start, time.perf_counter() - between
    return max(first - again, first / 100)  # a disturbed second time says nothing


def _touched(threads: int) -> float:
    """Return seconds per byte."""
    pool = workers(threads)

    def once() -> float:
        pages = np.frombuffer(map_pages(TOUCHED_BYTES), np.uint8)

        def fill() -> None:
            pool.for_each(lambda _, part: pages[part].fill(1), pool.shares(TOUCHED_BYTES))

        return _extra_of_first(fill)

    return median(once() for _ in range(REPEATS)) / TOUCHED_BYTES


def _placed(block: Vec3) -> float:
    """Return seconds per value."""
    starts = tuple(offsets(STRIDE))
    size = block.ceil_div(STRIDE)
    fragments = np.ones((len(starts), MAPS, *size), np.float32)

    def once() -> float:
        start = time.perf_counter()
        place(fragments, starts, STRIDE, np.empty((MAPS, *(size * STRIDE)), np.float32))
        return time.perf_counter() - start

    return median(once() for _ in range(REPEATS)) / fragments.size


def _make_hdf5(path: Path, values: NDArray[Any], **how: Any) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("main", data=values, **how)


def _read(path: Path, block: Vec3, threads: int) -> tuple[SecondsPerValue, InputChunks | None]:
    """Read a file in blocks, and return the times per value and what is known of its chunks."""
    from znni.volumes.locate import open_volume

    network = Network.chain("one", 1, (Conv("conv", 1, 1, Vec3(1, 1, 1), "identity"),))
    volume = open_volume(path)
    job = make_job(network, volume.size, "valid", "reflect", None)

    def read(place: Box) -> None:
        tile = next(tile for tile in tiles(volume.size, block) if tile.written == place)
        box = job.seen(tile, input_box(network, tile.computed.size))
        read_input(volume, job, box, network.scaling)

    return _each_block(block, block.volume, read, threads), volume.chunks


def _written(path: Path, dtype: OutputType, block: Vec3, threads: int) -> SecondsPerValue:
    from znni.volumes.locate import open_output

    whole = block * Vec3(BLOCKS, 1, 1)
    output = open_output(path, "", NewOutput(1, whole, dtype, compression="none"))
    output.describe({}, block)
    values = np.full((1, *block), 0.5, np.float32)
    taken = _each_block(
        block, values.size, lambda place: output.write(place, convert(values, dtype)), threads
    )
    output.finish({})
    return taken


def _each_block(
    block: Vec3, values: int, handle: Callable[[Box], None], threads: int
) -> SecondsPerValue:
    """Handle block after block along z; return the times per value.

    They are the median from beginning to end of blocks that nothing else disturbs, and the least
    processor time of blocks beside threads that compute, because chunks are measured as small
    differences of that.
    """
    seconds: list[float] = []
    working: list[float] = []
    for number in range(REPEATS):
        start = Vec3(2 * number * block.z, 0, 0)
        began = time.perf_counter()
        handle(Box(start, start + block))
        seconds.append(time.perf_counter() - began)
        start += Vec3(block.z, 0, 0)
        with Computing(threads) as computing:
            handle(Box(start, start + block))
        working.append(computing.others)
    return SecondsPerValue(median(seconds) / values, min(working) / values)


class Computing:
    """Threads that keep cores busy within a ``with`` block.

    Args:
        threads: the number of threads.

    Attributes:
        others: the processor time of all other threads within the block, once it has ended.
    """

    others = 0.0

    def __init__(self, threads: int) -> None:
        self._done = Event()
        self._own: list[float] = []
        self._threads = [Thread(target=self._compute) for _ in range(threads)]

    def __enter__(self) -> Self:
        self._before = time.process_time()
        for thread in self._threads:
            thread.start()
        return self

    def _compute(self) -> None:
        values = np.ones(COMPUTED_VALUES, np.float32)
        made = np.empty_like(values)
        while not self._done.is_set():
            np.exp(values, out=made)
        self._own.append(time.thread_time())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        self.others = max(time.process_time() - self._before - sum(self._own), LEAST)
