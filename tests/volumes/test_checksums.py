"""Tests of checksums: they are those of the values in C order, however the block lies in memory."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from znni.volumes.checksums import begin_checksum, checksum_of


@given(
    shape=st.tuples(*4 * [st.integers(1, 7)]),
    step=st.tuples(*4 * [st.sampled_from([1, 2, -1])]),
)
def test_the_checksum_is_that_of_the_values_in_order(
    shape: tuple[int, ...], step: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).integers(0, 2**16, shape, np.uint16)
    values = values[tuple(slice(None, None, each_step) for each_step in step)]
    found = begin_checksum(values)()
    assert found == checksum_of(values) == f"{crc32(values.tobytes()):08x}"
