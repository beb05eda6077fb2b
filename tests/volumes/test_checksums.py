"""Tests of checksums: several threads find that of one, whatever the block looks like."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from znni.volumes import checksums
from znni.volumes.checksums import begin_checksum, checksum_of, joined


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_checksum_of_two_parts(first: bytes, second: bytes) -> None:
    assert joined(crc32(first), crc32(second), len(second)) == crc32(first + second)


@given(
    shape=st.tuples(*4 * [st.integers(1, 7)]),
    step=st.tuples(*4 * [st.sampled_from([1, 2, -1])]),
    each=st.integers(1, 900),
)
def test_several_threads_find_the_checksum_of_one(
    shape: tuple[int, ...], step: tuple[int, ...], each: int
) -> None:
    values = np.random.default_rng(0).integers(0, 2**16, shape, np.uint16)
    values = values[tuple(slice(None, None, each_step) for each_step in step)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checksums, "PIECE_BYTES", each)
        found = begin_checksum(values)()
    assert found == checksum_of(values) == f"{crc32(values.tobytes()):08x}"


def test_a_large_block_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def noted(values: NDArray[np.uint8]) -> int:
        asked.append(values.nbytes)
        return crc32(values.data)

    monkeypatch.setattr(checksums, "_checksum", noted)
    monkeypatch.setattr(checksums, "PIECE_BYTES", 4000)
    values = np.arange(2 * 10 * 30 * 40, dtype=np.uint8).reshape(2, 10, 30, 40)
    assert begin_checksum(values)() == f"{crc32(values.data):08x}"
    assert sorted(asked) == [1200] * 2 + [3600] * 6
