"""Speed of znni's reading and writing of Zarr beside zarr-python's pipelines and TensorStore.

All have the same number of threads, and read and write the same arrays of 512^3 voxels. Blocks are
read in the places where runs read them: on the grid of chunks, and across it. Nobody waits for what
the system does with a file afterwards.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import typer
from numpy.typing import NDArray

from bench import session
from bench.record import Row
from bench.rounds import Effort, run_rounds, seconds_of
from bench.volumes import smooth
from znni.core.errors import InvalidInput
from znni.core.option_types import Compression
from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.engine.stages.convert import convert
from znni.machine.io_threads import io_threads
from znni.volumes.formats import library
from znni.volumes.formats.zarr.chunk_reader import ChunkedZarr
from znni.volumes.formats.zarr.chunk_writer import ZarrChunks
from znni.volumes.formats.zarr.encoding import compressors
from znni.volumes.formats.zarr.format import OF_RUNS
from znni.volumes.formats.zarr.output import make_image
from znni.volumes.locate import open_volume
from znni.volumes.shared_files import LocalFiles

Type: TypeAlias = Literal["float32", "uint8"]
Codec: TypeAlias = Literal["zstd", "blosc", "gzip", "none"]
TYPES: tuple[Type, ...] = ("float32", "uint8")
CODECS: tuple[Codec, ...] = ("zstd", "none", "gzip", "blosc")

VOLUME = 512
CHUNK = 64
IN_SHARD = 2  # chunks along each axis
FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
OURS, BATCHED, FUSED_NAME, TENSORSTORE = "znni", "batched", "fused", "tensorstore"


def zarr_libraries_command(
    size: Annotated[int, typer.Option(min=2, help="Voxels per axis of the largest block.")] = 256,
    codec: Annotated[list[str] | None, typer.Option(help="Repeatable. Default: all.")] = None,
    folder: session.Folder = None,
    repeats: session.Repeats = 7,
    budget: session.Budget = 60.0,
    out: session.Out = None,
) -> None:
    """Compare znni with other libraries that read and write Zarr."""
    session.check_known("codec", codec or [], CODECS)
    where, effort = folder or Path(tempfile.gettempdir()), Effort(repeats, budget)
    cases = product([it for it in CODECS if it in (codec or CODECS)], TYPES, (False, True))
    rows = (compared(Case(*case, size), where, effort) for case in cases)
    session.report_all("zarr-libraries", rows, [], out)


@dataclass(frozen=True)
class Case:
    """A way to store an array.

    Attributes:
        codec: the codec of its chunks.
        dtype: the type of its values.
        sharded: whether a file has several chunks.
        size: voxels per axis of the largest block that is read and written.
    """

    codec: Codec
    dtype: Type
    sharded: bool
    size: int

    @property
    def chunk(self) -> int:
        """Voxels of a chunk along each axis."""
        return min(CHUNK, self.size // IN_SHARD)

    def create(self, place: Path) -> Any:
        """Make an array without values, in place of what is there."""
        shutil.rmtree(place, ignore_errors=True)
        volume, shard = max(VOLUME, self.size), IN_SHARD * self.chunk
        zarr = library("zarr", "zarr")
        blosc = (zarr.codecs.BloscCodec(cname="zstd", clevel=1, shuffle="shuffle"),)
        return zarr.create_array(
            place,
            shape=(1, volume, volume, volume),
            dtype=self.dtype,
            chunks=(1, *[self.chunk] * 3),
            shards=(1, *[shard] * 3) if self.sharded else None,
            compressors=blosc if self.codec == "blosc" else compressors(self.codec),
            dimension_names=("c", "z", "y", "x"),
            attributes={OF_RUNS: ""},  # so that nobody warns of the chunks that are left out
        )

    @property
    def boxes(self) -> dict[str, tuple[slice, ...]]:
        """What is read: an aligned box of half the size, one across the grid, and the whole."""
        size, half, quarter = self.size, self.size // 2, self.size // 4
        start = self.chunk * 5 // 16
        places = {
            f"{half}^3": (quarter, quarter + half),
            f"{size - quarter}^3 across chunks": (start, start + size - quarter),
            f"{size}^3": (0, size),
        }
        return {name: (slice(0, 1), *[slice(*place)] * 3) for name, place in places.items()}


def fused_pipeline() -> AbstractContextManager[Any]:
    """Let zarr-python encode and decode in threads, without its event loop."""
    workers = {"codec_pipeline.max_workers": io_threads()}
    held: AbstractContextManager[Any] = library("zarr", "zarr").config.set(
        {"codec_pipeline.path": FUSED, **workers}
    )
    return held


def has_fused_pipeline() -> bool:
    """Return whether zarr-python is new enough for it: version 3.3, which needs Python 3.12."""
    return hasattr(library("zarr.core.codec_pipeline", "zarr"), FUSED.rpartition(".")[2])


def pipelines() -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Return the pipelines of zarr-python by name."""
    fused = {FUSED_NAME: fused_pipeline} if has_fused_pipeline() else {}
    return {BATCHED: nullcontext, **fused}


def tensorstore_array(place: Path) -> Any:
    """Open an array by TensorStore, with as many threads, and without waiting for the disk.

    Raises:
        InvalidInput: TensorStore is not installed.
    """
    if find_spec("tensorstore") is None:
        raise InvalidInput("this compares with TensorStore; pip install tensorstore")
    import tensorstore

    limit = {"limit": io_threads()}
    context = tensorstore.Context(
        {
            "data_copy_concurrency": limit,
            "file_io_concurrency": limit,
            "file_io_sync": False,
            "cache_pool": {"total_bytes_limit": 0},
        }
    )
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(place)}}
    return tensorstore.open(spec, open=True, context=context).result()


def compared(case: Case, folder: Path, effort: Effort) -> list[Row]:
    """Return a row for each thing that is done with an array, with the speeds of all."""
    block = convert(smooth(case.size)[np.newaxis], case.dtype)
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-zarr-") as made:
        place = Path(made)
        rows = [] if case.codec == "blosc" else [_written(case, block, place, effort)]
        whole = case.create(place / "image.zarr" / "0")
        whole[case.boxes[f"{case.size}^3"]] = block
        make_image(str(place / "image.zarr"), "image", whole, NewOutput(1, Vec3.of(1)).grid, "")
        for name, box in case.boxes.items():
            _check_alike(place / "image.zarr" / "0", box, block)
            rows.append(_read(case, name, box, place / "image.zarr", effort))
        rows.append(_opened(case, place / "image.zarr", effort))
    return rows


def _written(case: Case, block: NDArray[Any], place: Path, effort: Effort) -> Row:
    """Return the row of writing a block whose files are all new."""
    box = Box(Vec3(0, 0, 0), Vec3.of(case.size))
    codec: Compression = "zstd" if case.codec == "blosc" else case.codec
    key = (slice(0, 1), *box.slices)

    def ours() -> Callable[[], object]:
        array = case.create(place / "ours" / "0")
        size = Vec3(*array.shape[1:])
        wanted = NewOutput(1, size, case.dtype, compression=codec, sharded=case.sharded)
        chunks = ZarrChunks(array, LocalFiles(place / "ours"), "0", wanted)
        return lambda: chunks.write(box, block)

    def by(pipeline: Callable[[], AbstractContextManager[Any]]) -> Callable[[], object]:
        with pipeline():
            array = case.create(place / "theirs")

        def write() -> None:
            with pipeline():
                array[key] = block

        return write

    def by_tensorstore() -> Callable[[], object]:
        case.create(place / "tensorstore")
        array = tensorstore_array(place / "tensorstore")
        return lambda: array[key].write(block).result()

    prepared: dict[str, Callable[[], Callable[[], object]]] = {OURS: ours}
    for name, pipeline in pipelines().items():
        prepared[name] = partial(by, pipeline)
    prepared[TENSORSTORE] = by_tensorstore
    return _row(case, "write", f"{case.size}^3", block.nbytes, prepared, effort)


def _read(case: Case, name: str, box: tuple[slice, ...], image: Path, effort: Effort) -> Row:
    """Return the row of reading a box from an open array."""
    prepared = dict(_readers(image / "0", box))
    nbytes = int(np.prod([it.stop - it.start for it in box])) * np.dtype(case.dtype).itemsize
    return _row(case, "read", name, nbytes, prepared, effort)


def _readers(
    place: Path, box: tuple[slice, ...]
) -> Iterator[tuple[str, Callable[[], Callable[[], object]]]]:
    """Yield what opens an array, and returns a function that reads a box of it."""

    def ours() -> Callable[[], object]:
        array = ChunkedZarr(library("zarr", "zarr").open_array(place, mode="r"))
        return lambda: array[box]

    def by(pipeline: Callable[[], AbstractContextManager[Any]]) -> Callable[[], object]:
        with pipeline():
            array = library("zarr", "zarr").open_array(place, mode="r")

        def read() -> object:
            with pipeline():
                return array[box]

        return read

    yield OURS, ours
    for name, pipeline in pipelines().items():
        yield name, partial(by, pipeline)
    yield TENSORSTORE, lambda: tensorstore_array(place)[box].read().result


def _opened(case: Case, image: Path, effort: Effort) -> Row:
    """Return the row of opening an image. The libraries open its array without OME metadata."""
    zarr = library("zarr", "zarr")
    prepared: dict[str, Callable[[], Callable[[], object]]] = {
        OURS: lambda: lambda: open_volume(image),
        BATCHED: lambda: lambda: zarr.open(image, mode="r")["0"],
        TENSORSTORE: lambda: lambda: tensorstore_array(image / "0"),
    }
    return _row(case, "open", "", 0, prepared, effort)


def _check_alike(place: Path, box: tuple[slice, ...], block: NDArray[Any]) -> None:
    """Check that all read the same values.

    Raises:
        RuntimeError: one does not.
    """
    for name, prepare in _readers(place, box):
        if not np.array_equal(np.asarray(prepare()()), block[box]):
            raise RuntimeError(f"{name} reads other values")


def _row(
    case: Case,
    action: str,
    box: str,
    nbytes: int,
    prepared: dict[str, Callable[[], Callable[[], object]]],
    effort: Effort,
) -> Row:
    """Measure contestants in turn, and return their speeds, and ours as a share of theirs.

    Args:
        case: how the array is stored.
        action: what is done.
        box: what is read or written.
        nbytes: its bytes; 0 if nothing is.
        prepared: contestants by name; each returns the function that is timed.
        effort: how long to measure.
    """
    where = f"{case.codec}, {case.dtype}{', shards' * case.sharded}, {action} {box}".strip()
    session.progress(where)
    row: Row = {
        "codec": case.codec,
        "dtype": case.dtype,
        "files": "shards" if case.sharded else "chunks",
        "action": f"{action} {box}".strip(),
    }
    timed = {name: partial(_timed, prepare) for name, prepare in prepared.items()}
    results = run_rounds(timed, effort)
    for name, result in results.items():
        row[f"{name}_seconds"] = result.timing.median
        if nbytes:
            row[f"{name}_mb_per_s"] = nbytes / 1e6 / result.timing.median
        if name != OURS:
            rounds = zip(results[OURS].by_round, result.by_round, strict=True)
            row[f"{name}_ratio"] = statistics.median(a / b for a, b in rounds if a and b)
    timing = results[OURS].timing
    return row | {"rounds": len(timing.seconds), "spread": timing.spread}


def _timed(prepare: Callable[[], Callable[[], object]]) -> float:
    """Prepare a contestant, and time it."""
    return seconds_of(prepare())
