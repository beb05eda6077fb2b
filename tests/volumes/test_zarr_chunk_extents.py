"""Chunks of a Zarr output divide its patches, and take the declared memory."""

from __future__ import annotations

from typing import Any

import pytest
from block_memory import taken_and_counted
from hypothesis import given
from hypothesis import strategies as st

from znni.core.shapes import Vec3
from znni.core.volume import NewOutput
from znni.volumes.zarr.output import MOST_SHARD_VOXELS, ZarrOutput, chunk_and_shard


@given(
    st.tuples(*[st.integers(1, 700)] * 3).map(lambda extents: Vec3(*extents)),
    st.tuples(*[st.integers(1, 5000)] * 3).map(lambda extents: Vec3(*extents)),
)
def test_patches_are_whole_chunks_where_they_can_be(patch: Vec3, size: Vec3) -> None:
    chunk, shard = chunk_and_shard(patch, size)
    assert chunk.within(size)
    assert shard % chunk == Vec3(0, 0, 0)
    extents = patch.minimum(size)
    assert shard.volume <= max(min(MOST_SHARD_VOXELS, extents.volume // 4), chunk.volume)
    for axis in range(3):
        divisors = [n for n in range(32, 129) if extents[axis] % n == 0]
        if divisors:
            assert chunk[axis] in divisors
            assert extents[axis] % shard[axis] == 0
        else:
            assert chunk[axis] == min(64, size[axis])


def test_chunks_of_the_patches_of_real_plans() -> None:
    size = Vec3(2000, 2000, 2000)
    chunk, shard = chunk_and_shard(Vec3(316, 380, 380), size)
    assert (chunk, shard) == (Vec3(79, 76, 76), Vec3(316, 76, 380))
    assert chunk_and_shard(Vec3(317, 40, 7), size)[0] == Vec3(64, 40, 64)
    assert chunk_and_shard(size, Vec3(317, 40, 7))[0] == Vec3(64, 40, 7)


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
