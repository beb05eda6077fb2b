"""Compressed datasets are read with the same values as by HDF5."""

from __future__ import annotations

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
from znni.volumes.formats.hdf5.compressed import CompressedDataset, decoded_by_threads
from znni.volumes.locate import open_volume

extents = st.tuples(*[st.integers(1, 20)] * 3)


@settings(max_examples=60, deadline=None)
@given(
    extents,
    extents,
    st.sampled_from(["u1", "<u2", ">f4", "<f8", "<f2"]),
    st.booleans(),
    st.data(),
)
def test_any_part_of_any_dataset(
    tmp_path_factory: pytest.TempPathFactory,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str,
    shuffle: bool,
    data: Any,
) -> None:
    path = tmp_path_factory.mktemp("made") / "a.h5"
    values = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    chunks = tuple(map(min, chunks, shape))
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "a", shape, dtype, chunks=chunks, compression="gzip", shuffle=shuffle, fillvalue=7
        )
        half = data.draw(st.integers(1, shape[0]))
        made[:half] = values[:half]
    part = drawn_part(data, shape)
    with h5py.File(path) as file:
        found = decoded_by_threads(file["a"])
        assert isinstance(found, CompressedDataset)
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found[part], file["a"][part])


def test_a_chunk_that_a_filter_made_no_smaller_is_stored_without(tmp_path: Path) -> None:
    values = np.arange(64, dtype=np.uint16).reshape(4, 4, 4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("a", (4, 4, 8), "u2", chunks=(4, 4, 4), compression="gzip")
        made[..., :4] = values
        made.id.write_direct_chunk((0, 0, 4), values.tobytes(), filter_mask=1)
    with h5py.File(tmp_path / "a.h5") as file:
        found = decoded_by_threads(file["a"])[:, :, :]
    np.testing.assert_array_equal(found, np.concatenate([values, values], axis=2))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (2, 2, 2)},
        {"compression": "lzf"},
        {"compression": "gzip", "fletcher32": True},
    ],
)
def test_other_datasets_are_left_to_hdf5(tmp_path: Path, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("a", data=np.ones((4, 4, 4)), **options)
        assert decoded_by_threads(made) is None


def test_a_damaged_chunk_is_one_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset(
            "a", data=np.ones((4, 4, 4)), chunks=(2, 4, 4), compression="gzip"
        )
        made.id.write_direct_chunk((2, 0, 0), b"not deflated")
    volume = open_volume(tmp_path / "a.h5")
    assert (volume.read(Box(Vec3(0, 0, 0), Vec3(2, 4, 4))) == 1).all()
    with pytest.raises(RunFailed, match=r"a.h5:/a: cannot be read at 0:4,0:4,0:4: Error -3 while"):
        volume.read(Box(Vec3(0, 0, 0), Vec3(4, 4, 4)))


def test_what_is_decoded_takes_no_more_than_a_copy(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 9, (96, 128, 128)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=(32, 32, 32), compression="gzip", shuffle=True)
    volume = open_volume(tmp_path / "a.h5")
    tracemalloc.start()
    try:
        volume.read(Box(Vec3(0, 0, 0), volume.size))
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= 2.05 * values.nbytes
