"""A Zarr array is read box by box, so that few chunks are decoded at once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from znni.volumes.formats.zarr import chunk_reader
from znni.volumes.formats.zarr.chunk_reader import ChunkedZarr

CHUNKS = 5, 7, 4
SHAPE = 31, 40, 37
EACH = 3 * 2 * prod(CHUNKS)  # bytes for decoding a chunk of int16


class Counting:
    """An array that notes how many chunks each read decodes."""

    def __init__(self, array: Any) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self.chunks, self.filters = array.chunks, array.filters
        self.read: list[int] = []
        self._array = array

    def __getitem__(self, key: tuple[slice, ...]) -> NDArray[Any]:
        along = zip(key, self.chunks, strict=True)
        self.read.append(prod((it.stop - 1) // size - it.start // size + 1 for it, size in along))
        found: NDArray[Any] = self._array[key]
        return found


@pytest.fixture
def array() -> Counting:
    values = np.random.default_rng(0).integers(0, 999, SHAPE).astype(np.int16)
    made = zarr.create_array(zarr.storage.MemoryStore(), shape=SHAPE, dtype="int16", chunks=CHUNKS)
    made[...] = values
    return Counting(made)


@pytest.mark.parametrize("room", [1, 2, 3, 7, 8, 10])
def test_no_more_chunks_are_decoded_at_once_than_have_room(
    room: int, array: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_reader, "LEAST_ROOM", room * EACH)
    reader, part = ChunkedZarr(array), np.s_[4:6, 6:8, 3:5]
    assert reader.chunk_bytes == room * EACH
    np.testing.assert_array_equal(reader[part], array._array[part])
    assert array.read == {1: [1] * 8, 2: [2] * 4, 3: [2] * 4, 7: [4, 4]}.get(room, [8])


def test_a_part_has_room_for_as_much_as_its_values_take(
    array: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_reader, "LEAST_ROOM", 1)
    reader, whole = ChunkedZarr(array), np.s_[0:31, 0:40, 0:37]
    np.testing.assert_array_equal(reader[whole], array._array[whole])
    assert array.read == [7 * 6 * 10]
    assert reader.chunk_bytes == EACH
