"""Chunks of a Zarr output divide its patches, and take the declared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from block_memory import taken_and_counted
from hypothesis import given
from hypothesis import strategies as st

from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.volumes.formats.zarr.files import chunk_and_shard
from znni.volumes.formats.zarr.output import ZarrOutput

EXTENTS = st.tuples(*[st.integers(1, 700)] * 3).map(lambda extents: Vec3(*extents))
SIZES = st.tuples(*[st.integers(1, 5000)] * 3).map(lambda extents: Vec3(*extents))


@given(EXTENTS, SIZES)
def test_patches_are_whole_chunks_where_they_can_be(patch: Vec3, size: Vec3) -> None:
    chunk, file = chunk_and_shard(patch, NewOutput(1, size))
    assert file == chunk
    assert chunk.within(size)
    extents = patch.minimum(size)
    for axis in range(3):
        divisors = [n for n in range(32, 129) if extents[axis] % n == 0]
        if divisors:
            assert chunk[axis] in divisors
        else:
            assert chunk[axis] == min(64, size[axis])


@given(EXTENTS, SIZES, st.integers(1, 4), st.sampled_from(["float32", "uint8"]), st.booleans())
def test_shards_are_as_large_as_memory_and_patches_allow(
    patch: Vec3, size: Vec3, features: int, dtype: Any, shared: bool
) -> None:
    wanted = NewOutput(features, size, dtype, sharded=True)
    chunk, shard = chunk_and_shard(patch, wanted, shared=shared)
    extents, counts = patch.minimum(size), shard // chunk
    assert shard % chunk == Vec3(0, 0, 0)
    itemsize = {"float32": 4, "uint8": 1}[dtype]
    if counts.volume > 1:
        assert shard.volume <= features * extents.volume // 2
        assert shard.volume * itemsize <= 2**30
    for axis in range(3):
        whole = extents[axis] % chunk[axis] == 0
        assert counts[axis] == 1 or whole
        assert not whole or extents[axis] % shard[axis] == 0
        assert whole or not shared or patch[axis] >= size[axis]


def test_chunks_and_shards_of_the_patches_of_real_plans() -> None:
    size, patch = Vec3(2000, 2000, 2000), Vec3(316, 380, 380)
    one, three = (NewOutput(features, size, sharded=True) for features in (1, 3))
    assert chunk_and_shard(patch, one) == (Vec3(79, 76, 76), Vec3(158, 380, 380))  # 87 MiB
    assert chunk_and_shard(patch, three) == (Vec3(79, 76, 76), Vec3(158, 380, 380))
    many = NewOutput(100, size, sharded=True)
    assert chunk_and_shard(patch, many)[1] == patch  # 174 MiB
    wide = NewOutput(4, size, sharded=True)
    assert chunk_and_shard(Vec3(768, 768, 768), wide)[1] == Vec3(768, 768, 384)  # 864 MiB
    small = NewOutput(1, size, "uint8", sharded=True)
    assert chunk_and_shard(Vec3(64, 64, 128), small) == (Vec3(32, 32, 32), Vec3(64, 64, 64))
    plain = NewOutput(1, size)
    assert chunk_and_shard(Vec3(317, 40, 7), plain)[0] == Vec3(64, 40, 64)
    assert chunk_and_shard(size, NewOutput(1, Vec3(317, 40, 7)))[0] == Vec3(64, 40, 7)


@pytest.mark.usefixtures("own_folder")
def test_a_shard_has_at_least_eight_chunks() -> None:
    wanted = NewOutput(1, Vec3(96, 128, 160), sharded=True)
    output = ZarrOutput("out.zarr", wanted)
    output.begin({}, Vec3(96, 128, 80))
    values = np.random.default_rng(1).random((1, 96, 128, 160)).astype(np.float32)
    for x in (0, 80):
        part = Box(Vec3(0, 0, x), Vec3(96, 128, x + 80))
        output.write(part, values[..., x : x + 80])
    output.finish({})
    array = zarr.open("out.zarr/0", mode="r")
    assert np.prod(np.divide(array.shards, array.chunks)) >= 8
    assert len([path for path in Path("out.zarr/0/c").rglob("*") if path.is_file()]) == 4
    np.testing.assert_array_equal(array[:], values)


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("features", [1, 2])
def test_a_block_on_its_way_out_takes_what_is_counted(
    features: int, dtype: Any, sharded: bool
) -> None:
    size = Vec3(96, 128, 160)
    wanted = NewOutput(features, size * 2, dtype, sharded=sharded)
    taken, counted = taken_and_counted(ZarrOutput("out.zarr", wanted), features, size, dtype)
    assert taken <= 1.05 * counted
