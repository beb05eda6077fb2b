"""Speed of writing and reading blocks of output in each format, beside its library.

A block is written as a run writes it, and read as a run reads it, on one thread that asks. Nobody
waits for what the system does with the file afterwards. The libraries' contestants, zarr-python and
h5py, write the same array in the same chunks with one assignment, or read the same part of it. The
floors are a file of the same bytes, written or read by one thread in one call, and a copy of them
in memory.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import h5py
import numpy as np
import typer
from numpy.typing import NDArray

from bench import session
from bench.record import Row
from bench.rounds import Effort, Result, run_rounds, seconds_of
from znni.core.option_types import Compression, OutputType
from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.engine.stages.convert import convert
from znni.volumes.formats import library
from znni.volumes.locate import open_output, open_volume

BLOCKS = 2
CHUNK = 64
LIBRARIES = ("zarr-python", "h5py")
COARSE = 8  # voxels from one independent value to the next


@dataclass(frozen=True)
class Stored:
    """A way to store an output.

    Attributes:
        name: for the table.
        ending: of its file.
        compression: of its chunks, if the format leaves a choice.
        sharded: many chunks to a file.
    """

    name: str
    ending: str
    compression: Compression | None = None
    sharded: bool = False


FORMATS = (
    Stored("HDF5", ".h5"),
    *(
        Stored(f"Zarr, {compression}{', sharded' * sharded}", ".zarr", compression, sharded)
        for compression in ("zstd", "none")
        for sharded in (False, True)
    ),
)


def volumes_command(
    size: Annotated[int, typer.Option(min=1, help="Voxels per axis of a block.")] = 256,
    folder: session.Folder = None,
    repeats: session.Repeats = 5,
    budget: session.Budget = 60.0,
    out: session.Out = None,
) -> None:
    """Time reading and writing in each format.

    Rows have each format's library and the floors, too.
    """
    where = folder or Path(tempfile.gettempdir())
    effort = Effort(repeats, budget)
    compared = (compare_formats(dtype, size, where, effort) for dtype in get_args(OutputType))
    session.report_all("volumes", compared, [], out)


def compare_formats(dtype: OutputType, size: int, folder: Path, effort: Effort) -> list[Row]:
    """Return rows of all formats for values of one type, and of the floors.

    Args:
        dtype: type of the values.
        size: voxels per axis of a block.
        folder: where the files are made, on the disk that is measured.
        effort: how long to measure.
    """
    block = convert(smooth(size)[np.newaxis], dtype)
    rows = []
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-volumes-") as made:
        place = Path(made)
        groups = {
            "floor": _floors(block, place),
            **{stored.name: _of_format(stored, dtype, block, place) for stored in FORMATS},
            "HDF5, gzip": _of_compressed_hdf5(block, place),
        }
        for name, contestants in groups.items():
            session.progress(f"{name}, {dtype}")
            results = run_rounds(contestants, effort)
            rows += [_row(one, results, name, dtype, block) for one in results]
    return rows


def smooth(size: int) -> NDArray[np.float32]:
    """Return values 0..1 (z, y, x) like a network's: mostly near the ends, neighbours alike."""
    noise = np.random.default_rng(0)
    values: NDArray[Any] = noise.standard_normal((size // COARSE + 2,) * 3, np.float32)
    along = np.arange(size, dtype=np.float32) / COARSE
    first, share = along.astype(int), along % 1
    for axis in range(3):
        at = share.reshape([size if other == axis else 1 for other in range(3)])
        values = values.take(first, axis) * (1 - at) + values.take(first + 1, axis) * at
    values += noise.standard_normal(values.shape, np.float32) * np.float32(0.02)
    return np.asarray(1 / (1 + np.exp(-8 * values)), np.float32)


def _floors(block: NDArray[Any], folder: Path) -> dict[str, Callable[[], float]]:
    path, copy = folder / "floor", np.empty_like(block)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(BLOCKS):
                file.write(block.data)

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            for _ in range(BLOCKS):
                file.readinto(copy.data)

    def copied() -> None:
        for _ in range(BLOCKS):
            np.copyto(copy, block)

    return {
        "write: one file": partial(seconds_of, write),
        "read: one file": partial(seconds_of, read),
        "copy: memory": partial(seconds_of, copied),
    }


def _of_format(
    stored: Stored, dtype: OutputType, block: NDArray[Any], folder: Path
) -> dict[str, Callable[[], float]]:
    patch = Vec3(*block.shape[1:])
    boxes = [Box(start, start + patch) for start in _starts(patch)]
    size = boxes[-1].stop
    wanted = NewOutput(
        1, size, dtype, overwrite=True, compression=stored.compression, sharded=stored.sharded
    )
    path = folder / f"output{stored.ending}"

    def write() -> float:
        output = open_output(path, "", wanted)
        output.begin({}, patch)
        start = time.perf_counter()
        for box in boxes:
            output.write(box, block)
        seconds = time.perf_counter() - start
        output.finish({})
        return seconds

    def read() -> float:
        volume = open_volume(path)
        return seconds_of(lambda: [volume.read(box) for box in boxes])

    found = {"write: znni": write, "read: znni": read}
    if stored.ending == ".zarr":
        found["write: zarr-python"] = lambda: _library_write(path, folder, boxes, block)
    return found


def _of_compressed_hdf5(block: NDArray[Any], folder: Path) -> dict[str, Callable[[], float]]:
    """Return contestants that read a file that others wrote."""
    path = folder / "compressed.h5"
    with h5py.File(path, "w") as file:
        chunks = (1, *(min(CHUNK, extent) for extent in block.shape[1:]))
        file.create_dataset("main", data=block, chunks=chunks, compression="gzip")
    box = Box(Vec3(0, 0, 0), Vec3(*block.shape[1:]))

    def theirs() -> float:
        with h5py.File(path) as file:
            return seconds_of(
                lambda: [file["main"][(slice(None), *box.slices)] for _ in range(BLOCKS)]
            )

    def ours() -> float:
        volume = open_volume(path)
        return seconds_of(lambda: [volume.read(box) for _ in range(BLOCKS)])

    return {"read: znni": ours, "read: h5py": theirs}


def _starts(patch: Vec3) -> Iterator[Vec3]:
    return (Vec3(index * patch.z, 0, 0) for index in range(BLOCKS))


def _library_write(path: Path, folder: Path, boxes: list[Box], block: NDArray[Any]) -> float:
    """Time the same array by zarr-python alone."""
    zarr = library("zarr", "zarr")
    ours = zarr.open_array(path / "0", mode="r")
    copy = folder / "library.zarr"
    shutil.rmtree(copy, ignore_errors=True)
    array = zarr.create_array(
        copy,
        shape=ours.shape,
        dtype=ours.dtype,
        chunks=ours.chunks,
        shards=ours.shards,
        compressors=ours.compressors,
    )

    def write() -> None:
        for box in boxes:
            array[(slice(None), *box.slices)] = block

    return seconds_of(write)


def _row(
    contestant: str, results: dict[str, Result], name: str, dtype: OutputType, block: NDArray[Any]
) -> Row:
    action, _, by = contestant.partition(": ")
    megabytes = BLOCKS * block.nbytes / 1e6
    record = results[contestant].record()
    row: Row = {
        "format": name,
        "dtype": dtype,
        "block": str(Vec3(*block.shape[1:])),
        "action": action,
        "name": by,
        "mb_per_s": megabytes / record["seconds"],
        "voxels_per_s": BLOCKS * block.size / record["seconds"],
    }
    rivals = [f"{action}: {library}" for library in LIBRARIES if f"{action}: {library}" in results]
    if by == "znni" and rivals:
        pairs = zip(results[rivals[0]].by_round, results[contestant].by_round, strict=True)
        row["gain"] = statistics.median(theirs / ours for theirs, ours in pairs if theirs and ours)
    return row | record
