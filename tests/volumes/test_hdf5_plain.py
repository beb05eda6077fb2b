"""Datasets that are not compressed are read with the same values as by HDF5."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from drawn_parts import drawn_part
from hypothesis import given, settings
from hypothesis import strategies as st

from znni.core.errors import RunFailed
from znni.core.shapes import Box, Vec3
from znni.volumes.formats.hdf5 import chunk_reader
from znni.volumes.formats.hdf5.chunk_reader import chunk_places
from znni.volumes.formats.hdf5.format import open_hdf5
from znni.volumes.formats.hdf5.plain import PlainDataset, read_past_hdf5
from znni.volumes.locate import open_volume
from znni.volumes.mapped_array import MappedArray

extents = st.lists(st.integers(1, 20), min_size=2, max_size=4)


@settings(max_examples=80, deadline=None)
@given(
    extents,
    st.sampled_from(["u1", "<u2", ">f4", "<f8", "<f2", ">i4", "?"]),
    st.sampled_from(["chunks", "whole"]),
    st.data(),
)
def test_any_part_of_any_dataset(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], dtype: str, kind: str, data: Any
) -> None:
    path = tmp_path_factory.mktemp("made") / "a.h5"
    values = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    chunks = tuple(data.draw(st.integers(1, size)) for size in shape)
    options = {"chunks": chunks} if kind == "chunks" else {}
    with h5py.File(path, "w") as file:
        made = file.create_dataset("a", shape, dtype, fillvalue=1, **options)
        half = data.draw(st.integers(1, shape[0]))
        made[:half] = values[:half]  # the other chunks have no place in the file
    part = drawn_part(data, shape)
    with h5py.File(path) as file:
        found = read_past_hdf5(file["a"])
        assert isinstance(found, PlainDataset if options else MappedArray)
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found[part], file["a"][part])


@pytest.mark.parametrize(("chunks", "kind"), [(None, MappedArray), ((4, 8, 8), PlainDataset)])
def test_volumes_are_read_past_hdf5(
    tmp_path: Path, chunks: tuple[int, ...] | None, kind: type
) -> None:
    values = np.random.default_rng(0).integers(0, 255, (9, 20, 30), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=chunks)
    volume = open_hdf5(str(tmp_path / "a.h5"), None)
    assert isinstance(volume._array, kind)
    box = Box(Vec3(1, 2, 3), Vec3(8, 19, 29))
    np.testing.assert_array_equal(volume.read(box)[0], values[box.slices])


def test_all_places_of_chunks_are_listed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[h5py.Dataset] = []

    def listed(dataset: h5py.Dataset) -> np.ndarray[Any, np.dtype[np.int64]]:
        lists.append(dataset)
        return chunk_places(dataset)

    monkeypatch.setattr(chunk_reader, "chunk_places", listed)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, options in {"plain": {}, "gzip": {"compression": "gzip"}}.items():
            file.create_dataset(name, data=np.ones((40, 40, 40)), chunks=(4, 4, 4), **options)
    for name in ("plain", "gzip"):
        volume = open_volume(tmp_path / f"a.h5:{name}")
        for start in (0, 7, 20):  # many threads read many chunks each time
            volume.read(Box(Vec3.of(start), Vec3.of(40)))
        assert [dataset.name for dataset in lists] == [f"/{name}"]
        lists.clear()


def test_neighbours_in_the_file_are_read_together(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, (20, 20, 90), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("a", values.shape, np.uint8, chunks=(10, 10, 10))
        made[:, :, 50:] = values[:, :, 50:]  # rows of the first chunks come later in the file
        made[:, :, :50] = values[:, :, :50]
    with h5py.File(tmp_path / "a.h5") as file:
        found = read_past_hdf5(file["a"])
        assert found is not None
        whole = list(found.chunk_rows([range(20), range(20), range(90)]))
        assert {(row.start[2], row.chunks) for row in whole} == {(0, 5), (50, 4)}
        part = list(found.chunk_rows([range(3, 9), range(4, 12), range(15, 71)]))
        assert [(row.start[2], row.chunks) for row in part] == 2 * [
            (10, 1), (20, 3), (50, 2), (70, 1)
        ]  # fmt: skip
        np.testing.assert_array_equal(found[3:9, 4:12, 15:71], values[3:9, 4:12, 15:71])


def test_what_is_stored_otherwise_is_left_to_hdf5(tmp_path: Path) -> None:
    values = np.ones((4, 4, 4))
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        assert read_past_hdf5(file.create_dataset("a", data=values)) is None
    with h5py.File(path, "w") as file:
        twelve_bits = h5py.h5t.STD_U16LE.copy()
        twelve_bits.set_precision(12)
        space = h5py.h5s.create_simple((4, 4, 4))
        h5py.h5d.create(file.id, b"bits", twelve_bits, space)
        layout = h5py.VirtualLayout((4, 4, 4), "f8")
        layout[:] = h5py.VirtualSource("b.h5", "a", (4, 4, 4))
        others = (
            file.create_dataset("gzip", data=values, compression="gzip"),
            file.create_dataset("sums", data=values, fletcher32=True),
            file.create_dataset("text", (4, 4, 4), h5py.string_dtype()),
            file.create_dataset("pairs", (4, 4, 4), "c8"),
            file.create_dataset("unwritten", (4, 4, 4), "f4"),
            file.create_dataset("empty", (0, 4, 4), "f4"),
            file.create_dataset("outside", (4,), "u1", external=[(str(path) + ".raw", 0, 4)]),
            file.create_virtual_dataset("virtual", layout),
            file["bits"],
        )
        for dataset in others:
            assert read_past_hdf5(dataset) is None, dataset.name


@pytest.mark.parametrize(
    ("chunks", "said"), [((2, 64, 64), "ends at"), (None, "its last [0-9]+ bytes are missing")]
)
def test_a_file_that_was_cut_is_one_error(
    tmp_path: Path, chunks: tuple[int, ...] | None, said: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=np.ones((8, 64, 64)), chunks=chunks)
    volume = open_volume(tmp_path / "a.h5")
    os.truncate(tmp_path / "a.h5", 200_000)
    with pytest.raises(RunFailed, match=f"a.h5:/a: cannot be read at .*{said}"):
        volume.read(Box(Vec3(0, 0, 0), Vec3(8, 64, 64)))


def test_reading_takes_no_more_than_a_copy(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 9, (96, 128, 128)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=(32, 32, 32))
        file.create_dataset("b", data=values)
    for name in "ab":
        volume = open_hdf5(str(tmp_path / "a.h5"), name)
        tracemalloc.start()
        try:
            volume.read(Box(Vec3(0, 0, 0), volume.size))
            _, taken = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken <= 2.05 * values.nbytes


def test_without_chunks_no_more_is_read_than_a_narrow_box_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are read whole would be copied twice: 60 times as many bytes as the box has."""
    values = np.random.default_rng(0).integers(0, 255, (9, 20, 3000), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = values
    volume = open_hdf5(str(tmp_path / "a.h5"), None)
    monkeypatch.setattr(os, "preadv", None)
    box = Box(Vec3(1, 2, 1000), Vec3(8, 19, 1050))
    tracemalloc.start()
    try:
        found = volume.read(box)
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found[0], values[box.slices])
    assert taken < found.nbytes + 10_000
