"""Tests of what a network sees: voxels repeated beyond edges, read in pieces by several threads."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from znni.core.errors import UnusableValues
from znni.core.option_types import Pad
from znni.core.shapes import Box, Vec3
from znni.engine import reading
from znni.engine.reading import read_input
from znni.engine.stages.read import COPIES_READ, bytes_of_reading
from znni.engine.tiles import Job
from znni.machine import io_threads
from znni.machine.io_threads import finish_all, mapped
from znni.network.input_scaling import Fixed, InputScaling
from znni.plans.stored_values import Stored
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import open_volume

SIZE = Vec3(9, 10, 11)
VALUES = np.random.default_rng(0).normal(10, 50, (2, *SIZE)).astype(np.float32)
BOXES = [
    Box(Vec3(0, 0, 0), SIZE),
    Box(Vec3(2, 3, 4), Vec3(7, 8, 9)),
    Box(Vec3(-3, -4, -5), SIZE + 6),
    Box(Vec3(-30, 2, 9), Vec3(-1, 40, 12)),
    Box(Vec3(10, 11, -9), Vec3(14, 12, -1)),
]
SCALINGS = [
    InputScaling(),
    InputScaling(scale=0.5, offset=-1.0),
    InputScaling(normalize=(Fixed(3.0, 2.0, (-40.0, 60.0)), Fixed(1.0, 5.0))),
]


class InPieces:
    """An array that is read in pieces; it notes what is read."""

    def __init__(self, values: NDArray[Any], pieces: tuple[int, ...] | None) -> None:
        self.shape, self.dtype, self.pieces = values.shape, values.dtype, pieces
        self.boxes: list[tuple[slice, ...]] = []
        self._values = values

    def __getitem__(self, key: Any) -> NDArray[Any]:
        self.boxes.append(key)
        return self._values[key]


def job(pad: Pad) -> Job:
    return Job(SIZE, Vec3(0, 0, 0), SIZE, Vec3(0, 0, 0), pad)


def seen(box: Box, pad: Pad, scaling: InputScaling) -> NDArray[np.float32]:
    """Return what is seen in a box, voxel by voxel as NumPy pads."""
    modes: dict[Pad, str] = {"reflect": "reflect", "edge": "edge", "constant": "edge"}
    x = VALUES.copy()
    if scaling.normalize:
        for values, one in zip(x, scaling.fixed(2), strict=True):
            if one.clip:
                np.clip(values, *np.float32(one.clip), out=values)
            np.subtract(values, np.float32(one.mean), out=values)
            np.divide(values, np.float32(one.std), out=values)
    else:
        x = x * np.float32(scaling.scale) + np.float32(scaling.offset)
    around = 60
    widths = [(0, 0)] + [(around, around)] * 3
    padded: Any = np.pad(x, widths, modes[pad])  # type: ignore[call-overload]
    if pad == "constant":
        padded = np.pad(x, widths)
    found: NDArray[np.float32] = padded[:, *box.shifted(Vec3.of(around)).slices]
    return found


@pytest.mark.slow_cases
@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize("pad", ["reflect", "edge", "constant"])
@pytest.mark.parametrize("pieces", [None, (1, 10, 11), (4, 4, 4), (2, 3, 30)])
@pytest.mark.parametrize("cached", [50, 2**18])
def test_any_pieces_give_the_same(
    pieces: tuple[int, ...] | None,
    pad: Pad,
    scaling: InputScaling,
    cached: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "PIECE_VALUES", cached)
    monkeypatch.setattr(reading, "THREAD_VALUES", cached)
    monkeypatch.setattr(reading, "LEAST_BYTES", cached)
    volume = ArrayVolume(InPieces(VALUES, pieces) if pieces else VALUES)
    for box in BOXES:
        found = read_input(volume, job(pad), box, scaling)
        np.testing.assert_array_equal(found, seen(box, pad, scaling))


def test_pieces_begin_where_stored_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LEAST_BYTES", 0)
    array = InPieces(VALUES, (1, 4, 5, 6))
    read_input(ArrayVolume(array), job("reflect"), Box(Vec3(1, 1, 1), SIZE), InputScaling())
    for key in array.boxes:
        for part, extent, stop in zip(key[1:], array.pieces[1:], SIZE, strict=True):
            assert part.start % extent == 0 or part.start == 1
            assert part.stop % extent == 0 or part.stop == stop
    read = np.zeros(SIZE, int)
    for key in array.boxes:
        read[key[1:]] += 1
    assert (read[1:, 1:, 1:] == 1).all()


def test_a_small_volume_is_read_in_one_piece_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[bool] = []

    class Noted(InPieces):
        def __getitem__(self, key: tuple[slice, ...]) -> NDArray[np.float32]:
            readers.append(current_thread() is main_thread())
            return super().__getitem__(key)

    monkeypatch.setattr(reading, "io_threads", lambda: 16)
    array = Noted(VALUES, (1, 1, 1, 1))
    read_input(ArrayVolume(array), job("reflect"), Box(Vec3(0, 0, 0), SIZE), InputScaling())
    assert readers == [True]


@pytest.mark.parametrize("pieces", [None, (1, 10, 11), (4, 4, 4)])
def test_voxels_that_are_zero_in_all_maps_stay_zero(pieces: tuple[int, ...] | None) -> None:
    stored = VALUES.copy()
    stored[:, 2:5, 3:, :4] = 0
    stored[0, 7] = 0
    scaling = replace(SCALINGS[2], within="nonzero")
    box = Box(Vec3(0, 0, 0), SIZE)
    volume = ArrayVolume(InPieces(stored, pieces) if pieces else stored)
    found = read_input(volume, job("reflect"), box, scaling)
    assert not found[:, 2:5, 3:, :4].any()
    assert found[0, 7].all()


def test_a_voxel_that_is_no_number_is_named_in_any_piece() -> None:
    stored = VALUES.copy()
    stored[1, 6, 7, 3] = np.inf
    volume = ArrayVolume(InPieces(stored, (2, 3, 4)))
    with pytest.raises(UnusableValues, match="holds inf at voxel z=6, y=7, x=3; replace") as error:
        read_input(volume, job("reflect"), BOXES[2], InputScaling())
    assert error.value.voxel == Vec3(6, 7, 3)
    stored[1, 6, 7, 3] = 3e38
    with pytest.raises(UnusableValues, match=r"z=6, y=7, x=3, which is infinite when scaled"):
        read_input(volume, job("reflect"), BOXES[2], InputScaling(scale=10))


def test_a_mapped_file_is_never_read_as_a_whole(tmp_path: Path) -> None:
    stored = np.ones((64, 256, 256), np.float32)
    np.save(tmp_path / "v.npy", stored)
    volume = open_volume(tmp_path / "v.npy")
    whole = Box(Vec3(0, 0, 0), volume.size)
    of_all = Job(volume.size, whole.start, volume.size, whole.start, "reflect")
    tracemalloc.start()
    try:
        found = read_input(volume, of_all, Box(whole.start, whole.stop + 1), InputScaling())
        beside = tracemalloc.get_traced_memory()[1] - found.nbytes
    finally:
        tracemalloc.stop()
    assert beside < stored.nbytes


def test_threads_that_read_may_read_with_the_same_threads() -> None:
    """HDF5 reads the chunks of a piece so. No thread waits for another one."""

    def piece(number: int) -> int:
        return sum(mapped(lambda chunk: chunk * number, range(4), 2))

    count = 4 * io_threads.io_threads()
    assert list(mapped(piece, range(count), count)) == [6 * number for number in range(count)]


@pytest.mark.parametrize("most", [1, 4])
def test_one_task_at_a_time_is_done_by_the_caller(most: int) -> None:
    ran: list[bool] = []
    finish_all(lambda _: ran.append(current_thread() is main_thread()), range(9), most)
    assert ran == [most == 1] * 9


@pytest.mark.parametrize("chunk", [96, 80, 40, 24])
def test_reading_compressed_chunks_takes_what_is_declared(chunk: int, tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 255, (100, 100, 100)).astype(np.uint8)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_dataset("main", data=stored, chunks=(chunk,) * 3, compression="gzip")
    volume = open_volume(tmp_path / "v.h5")
    assert volume.pieces == Vec3.of(chunk)
    of_all = Job(volume.size, Vec3.of(0), volume.size, Vec3.of(0), "reflect")
    read_input(volume, of_all, Box(Vec3.of(0), Vec3.of(2)), InputScaling())  # starts threads
    tracemalloc.start()
    try:
        found = read_input(volume, of_all, Box(Vec3.of(0), volume.size), InputScaling())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found[0], stored)
    assert peak <= (4 + COPIES_READ * volume.itemsize) * volume.size.volume


@pytest.mark.parametrize("planes", [1, 2])
def test_reading_few_planes_without_pieces_takes_what_is_declared(planes: int) -> None:
    """Parts of a plane are scaled apart where edges are padded, but not a whole one at a time."""

    class Copied(InPieces):
        def __getitem__(self, key: Any) -> NDArray[Any]:
            return super().__getitem__(key).copy()

    stored = np.ones((1, planes, 1500, 1500), np.uint8)
    volume = ArrayVolume(Copied(stored, None))
    of_all = Job(volume.size, Vec3.of(0), volume.size, Vec3.of(0), "reflect")
    padded = Box(Vec3(0, -3, -3), volume.size + Vec3(0, 3, 3))
    read_input(volume, of_all, padded, InputScaling())  # starts threads
    tracemalloc.start()
    try:
        found = read_input(volume, of_all, padded, InputScaling())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found == 1).all()
    assert peak <= (4 + COPIES_READ * volume.itemsize) * padded.size.volume


@pytest.mark.slow
@pytest.mark.parametrize(
    "storing",
    [
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True},
        {"compression": "lzf"},
        {},
        {"compressors": "auto"},
        {"compressors": None},
        {"compressors": "auto", "filters": "delta"},
        {"compression": "zlib"},
    ],
)  # fmt: skip
def test_reading_a_part_of_large_chunks_takes_what_is_declared(
    storing: dict[str, Any], tmp_path: Path
) -> None:
    """A block overlaps one chunk or eight. Each has twenty times as many voxels, but for TIFF."""
    stored = np.random.default_rng(0).integers(0, 255, (200, 200, 200)).astype("<i2")
    chunks = (160,) * 3
    if "compressors" in storing:
        zarr = pytest.importorskip("zarr")
        path, version = tmp_path / "v.zarr", 3
        if "filters" in storing:
            delta = pytest.importorskip("numcodecs").Delta("<i2")
            storing, version = storing | {"filters": [delta]}, 2
        made = zarr.create_array(
            path, shape=stored.shape, dtype="<i2", chunks=chunks, zarr_format=version, **storing
        )
        made[:] = stored
    elif storing.get("compression") == "zlib":
        path, chunks = tmp_path / "v.tif", (1, *chunks[1:])
        tifffile = pytest.importorskip("tifffile")
        tifffile.imwrite(path, stored, tile=chunks[1:], photometric="minisblack", **storing)
    else:
        path = tmp_path / "v.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("main", data=stored, chunks=chunks, **storing)
    volume = open_volume(path)
    of_all = Job(volume.size, Vec3.of(0), volume.size, Vec3.of(0), "reflect")
    read_input(volume, of_all, Box(Vec3.of(0), Vec3.of(2)), InputScaling())  # loads libraries
    told = Stored(input_itemsize=volume.itemsize, input_chunk_bytes=volume.chunk_bytes)
    for start in (10, 140):
        box = Box(Vec3.of(start), Vec3.of(start + 60))
        tracemalloc.start()
        try:
            found = read_input(volume, of_all, box, InputScaling())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        np.testing.assert_array_equal(found[0], stored[box.slices])
        assert peak <= 4 * box.size.volume + bytes_of_reading(told, box.size.volume)
