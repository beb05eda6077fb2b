"""Measuring how long a run takes to handle blocks, outside its layers.

The functions that runs use are timed, on files in the system's temporary folder. As in a run, each
is timed on memory, or on a part of a file, that it has not seen before. Their processor time counts
beside threads that compute, as layers do: two cores that work share caches and memory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from mmap import PAGESIZE
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.memory_rates import cold_seconds, touched_seconds
from znni.core.chunks import CHUNK, chunk_extents
from znni.core.option_types import Codec, Form, OutputType
from znni.core.shapes import ONE, ZERO, Box, Vec3, offsets
from znni.core.volume import NewOutput
from znni.engine.backends.host.recombine import recombine
from znni.engine.reading import read_input
from znni.engine.stages.convert import convert
from znni.engine.tiles import make_job
from znni.machine.handling_times import READ, ChunkTimes, HandlingTimes, SecondsPerValue
from znni.machine.io_threads import io_threads_on
from znni.machine.machine import Machine
from znni.network.layers import Conv
from znni.network.network import Network
from znni.plans.stored_values import InputChunks
from znni.volumes.formats import library

REPEATS = 5
BLOCKS = 2 * REPEATS  # each second one is handled beside threads that compute

BLOCK = Vec3(128, 128, 128)

# Seconds of a difference at least, which may be disturbed.
LEAST = 1e-12

# A file whose blocks lie side by side, so that each maps the rows of all. Files in chunks: those
# that are compressed come after those that are not, by what reads them.
WIDE = "wide.h5"
CHUNKED = ("chunks.h5", "gzip.h5", "chunks.zarr", "zstd.zarr", "planes.tif")

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
    with tempfile.TemporaryDirectory(prefix="znni-") as made, ExitStack() as outputs:
        folder = Path(made)
        values = _noise(block)
        works = {f"read {size}": _whole_rows(folder, block, values, size) for size in READ}
        works |= {path.name: _reads(path, each) for path, each in _inputs(folder, block, values)}
        for dtype in dtypes:
            path = folder / f"written-{dtype}.h5"
            works[f"written {dtype}"] = _writes(path, dtype, block, outputs)
        if find_spec("zarr") is not None:
            works["files"] = _writes(folder / "files.zarr", "uint8", block, outputs)
        taken = _in_turn(works, threads)
    mapped = max(taken[WIDE].more_than(taken["read 1"]) / (BLOCKS - 1), LEAST)
    read = {size: _unmapped(taken[f"read {size}"].usual, size * mapped, threads) for size in READ}
    written = {dtype: taken[f"written {dtype}"].usual for dtype in dtypes}
    chunks = _of_chunks(works, taken, mapped, block)
    return HandlingTimes(
        touched_seconds(threads), _placed(block), read, written, cold_seconds(), chunks
    )


def _unmapped(taken: SecondsPerValue, mapped: float, threads: int) -> SecondsPerValue:
    """Return the seconds per value without those to map it.

    Args:
        taken: seconds per value of a block that has all values of its rows.
        mapped: a core's seconds to map a value.
        threads: threads that compute.
    """
    alone = taken.seconds - mapped / io_threads_on(threads)
    return SecondsPerValue(max(alone, LEAST), max(taken.working - mapped, LEAST))


def _of_chunks(
    works: Mapping[str, _Blocks], taken: Mapping[str, _Taken], mapped: float, block: Vec3
) -> ChunkTimes:
    """Return the times of chunks: what is left when those that are known by now are subtracted.

    Args:
        works: the blocks that were handled, by name.
        taken: their times.
        mapped: a core's seconds to map a value of 8 bits.
        block: extents of the handled blocks.
    """
    whole = taken["read 1"]
    chunk: dict[Form, float] = {"mapped": mapped * PAGESIZE}
    decoded: dict[Codec, float] = {}
    for name in filter(works.__contains__, CHUNKED):
        known = works[name].chunks
        assert known is not None
        more = (taken[name].more_than(whole) + mapped) * known.chunk.volume
        if known.codec is None:
            chunk[known.form] = max(more, LEAST)
        else:
            more -= chunk[known.form]
            decoded[known.codec] = max(more / known.chunk.volume, LEAST)
    if "files" not in works:
        return ChunkTimes(chunk, decoded)
    more = taken["files"].more_than(taken["written uint8"])
    return ChunkTimes(chunk, decoded, max(more * chunk_extents(block, block).volume, LEAST))


def _whole_rows(folder: Path, block: Vec3, values: NDArray[np.uint8], size: int) -> _Blocks:
    """Make a file without chunks, and return its blocks, which have all values of their rows.

    Args:
        folder: where the file is made.
        block: extents of the blocks.
        values: the values of all blocks.
        size: bytes of a stored value.
    """
    path = folder / f"{size}.h5"
    _make_hdf5(path, values.astype(READ[size]))
    return _reads(path, block)


def _inputs(folder: Path, block: Vec3, values: NDArray[np.uint8]) -> Iterator[tuple[Path, Vec3]]:
    """Make files of 8 bits, in one of which blocks lie side by side, and the others in chunks.

    Args:
        folder: where files are made.
        block: extents of the blocks.
        values: the values of all blocks.

    Yields:
        A file, and the extents of the blocks that are read of it.
    """
    extents = tuple(block.minimum(Vec3.of(CHUNK)))
    _make_hdf5(folder / WIDE, values.reshape(block * Vec3(1, 1, BLOCKS)))
    _make_hdf5(folder / "chunks.h5", values, chunks=extents)
    _make_hdf5(folder / "gzip.h5", values, chunks=extents, compression="gzip")
    yield from ((folder / name, block) for name in (WIDE, "chunks.h5", "gzip.h5"))
    if find_spec("zarr") is None:
        return
    for name, compressors in {"chunks.zarr": None, "zstd.zarr": "auto"}.items():
        library("zarr", "zarr").create_array(
            folder / name, data=values, chunks=extents, compressors=compressors
        )
        yield folder / name, block
    if find_spec("tifffile") is not None:
        flat = Vec3(block.z // FLATTER, WIDER * block.y, WIDER * block.x)
        library("tifffile", "tiff").imwrite(
            folder / "planes.tif",
            values.reshape(flat * Vec3(BLOCKS, 1, 1)),
            metadata={"axes": "ZYX"},
            compression="deflate",
        )
        yield folder / "planes.tif", flat


def _noise(block: Vec3) -> NDArray[np.uint8]:
    """Return grey levels of all blocks, which compress about as badly as images do."""
    drawn = np.random.default_rng(0).standard_normal(block * Vec3(BLOCKS, 1, 1), np.float32)
    return (drawn * 25 + 128).clip(0, 255).astype(np.uint8)


def _placed(block: Vec3) -> float:
    """Return seconds per value."""
    starts = tuple(offsets(STRIDE))
    size = block.ceil_div(STRIDE)
    fragments = np.ones((len(starts), MAPS, *size), np.float32)

    def once() -> float:
        start = time.perf_counter()
        recombine(fragments, starts, STRIDE, np.empty((MAPS, *(size * STRIDE)), np.float32))
        return time.perf_counter() - start

    return median(once() for _ in range(REPEATS)) / fragments.size


def _make_hdf5(path: Path, values: NDArray[Any], **how: Any) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("main", data=values, **how)


class _Blocks(NamedTuple):
    """Blocks of a file, and how each is handled.

    Attributes:
        boxes: the blocks.
        handle: reads or writes one.
    """

    boxes: list[Box]
    handle: Callable[[Box], None]
    chunks: InputChunks | None = None


def _reads(path: Path, block: Vec3) -> _Blocks:
    """Return the blocks of an input."""
    from znni.volumes.locate import open_volume

    network = Network.chain("one", 1, (Conv("conv", 1, 1, ONE, "identity"),))
    volume = open_volume(path)
    job = make_job(network, volume.size, "valid", "reflect", None)

    def read(box: Box) -> None:
        read_input(volume, job, box, network.scaling)

    return _Blocks(list(Box(ZERO, volume.size).cut(block)), read, volume.chunks)


def _writes(path: Path, dtype: OutputType, block: Vec3, outputs: ExitStack) -> _Blocks:
    """Return the blocks of an output.

    Args:
        path: the output.
        dtype: the type of its values.
        block: extents of its blocks.
        outputs: completes the output in the end.
    """
    from znni.volumes.locate import open_output

    whole = block * Vec3(BLOCKS, 1, 1)
    output = open_output(path, "", NewOutput(1, whole, dtype, compression="none"))
    output.begin({}, block)
    outputs.callback(output.finish, {})
    values = np.full((1, *block), 0.5, np.float32)

    def write(box: Box) -> None:
        output.write(box, convert(values, dtype))

    return _Blocks(list(Box(ZERO, whole).cut(block)), write)


class _Taken(NamedTuple):
    """Times per value of blocks, in the order in which they were handled.

    Attributes:
        seconds: from beginning to end of blocks that nothing else disturbed.
        working: processor time of blocks beside threads that compute.
    """

    seconds: list[float]
    working: list[float]

    @property
    def usual(self) -> SecondsPerValue:
        """The medians of both."""
        return SecondsPerValue(median(self.seconds), median(self.working))

    def more_than(self, other: _Taken) -> float:
        """Return by how much more a core works for a value than for one of other blocks."""
        pairs = zip(self.working, other.working, strict=True)
        return median(more - less for more, less in pairs)


def _in_turn(works: Mapping[str, _Blocks], threads: int) -> dict[str, _Taken]:
    """Handle two blocks of each work, and do so again and again; return the times per value.

    Chunks are measured as small differences of two works. So both are done at nearly the same time:
    what other programs do changes from one second to the next.
    """
    taken = {name: _Taken([], []) for name in works}
    for number in range(REPEATS):
        for name, work in works.items():
            undisturbed, disturbed = work.boxes[2 * number : 2 * number + 2]
            began = time.perf_counter()
            work.handle(undisturbed)
            seconds = time.perf_counter() - began
            with Computing(threads) as computing:
                work.handle(disturbed)
            taken[name].seconds.append(seconds / undisturbed.size.volume)
            taken[name].working.append(computing.others / disturbed.size.volume)
    return taken


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
