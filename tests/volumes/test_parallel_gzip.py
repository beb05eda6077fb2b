"""Gzip by several threads: any program reads the stream, and it depends on the bytes alone."""

from __future__ import annotations

import gzip
import subprocess
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from znni.volumes import parallel_gzip
from znni.volumes.parallel_gzip import BLOCK, gzipped


@given(
    sizes=st.lists(st.integers(0, 3 * BLOCK // 2), max_size=4),
    values=st.sampled_from([1, 3, 256]),
    level=st.sampled_from([1, 9]),
)
def test_a_stream_gives_its_bytes_back(sizes: list[int], values: int, level: int) -> None:
    random = np.random.default_rng(0)
    pieces = [random.integers(0, values, size, np.uint8).tobytes() for size in sizes]
    packed = b"".join(gzipped(pieces, level))
    assert gzip.decompress(packed) == b"".join(pieces)
    assert packed == b"".join(gzipped([b"".join(pieces)], level))


def test_the_stream_does_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 4, 5 * BLOCK + 7, np.uint8).tobytes()
    expected = b"".join(gzipped([data], 1))
    monkeypatch.setattr(parallel_gzip, "io_threads", lambda: 1)
    assert b"".join(gzipped([data], 1)) == expected


def test_blocks_refer_to_what_is_before_them() -> None:
    half = np.random.default_rng(0).integers(0, 256, parallel_gzip.WINDOW // 2, np.uint8).tobytes()
    data = half * (4 * BLOCK // len(half))
    packed = b"".join(gzipped([data], 1))
    alone = sum(len(zlib.compress(data[at : at + BLOCK], 1)) for at in range(0, len(data), BLOCK))
    assert len(packed) < 0.6 * alone


def test_gzip_itself_reads_the_stream() -> None:
    data = bytes(range(256)) * 3000
    packed = b"".join(gzipped([memoryview(data)], 1))
    read = subprocess.run(["gzip", "-dc"], input=packed, capture_output=True, check=True)
    assert read.stdout == data
