"""zarr-python reads the chunks and shards encoded here, and would have written the same bytes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any, get_args

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from znni.core.option_types import Compression, OutputType
from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.machine.io_threads import mapped
from znni.volumes.formats.zarr.output import ZarrOutput

extents = st.tuples(*[st.integers(1, 80)] * 3).map(lambda three: Vec3(*three))


def blocks(size: Vec3, patch: Vec3) -> list[Box]:
    starts = product(*(range(0, end, step) for end, step in zip(size, patch, strict=True)))
    return [Box(Vec3(*start), (Vec3(*start) + patch).minimum(size)) for start in starts]


def written(place: str, wanted: NewOutput, patch: Vec3, values: Any) -> Any:
    output = ZarrOutput(place, wanted)
    output.begin({}, patch)
    for box in blocks(wanted.size, patch):
        output.write(box, values[:, *box.slices])
    output.finish({})
    return zarr.open_array(f"{place}/0", mode="r")


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    extents,
    st.tuples(*[st.integers(1, 90)] * 3).map(lambda three: Vec3(*three)),
    st.sampled_from(get_args(Compression)),
    st.sampled_from(get_args(OutputType)),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_array_in_any_patches_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    size: Vec3,
    patch: Vec3,
    compression: Compression,
    dtype: OutputType,
    sharded: bool,
    seed: int,
) -> None:
    values = np.random.default_rng(seed).integers(-40, 40, (2, *size)).clip(0).astype(dtype)
    patch = patch.maximum((size + 2) // 3)
    place = str(tmp_path_factory.mktemp("made") / "out.zarr")
    wanted = NewOutput(2, size, dtype, compression=compression, sharded=sharded)
    np.testing.assert_array_equal(written(place, wanted, patch, values)[...], values)


@pytest.mark.parametrize("sharded", [False, True])
def test_blocks_that_share_chunks(sharded: bool, tmp_path: Path) -> None:
    """If extents have no divisors, a chunk that two blocks share holds the values of both."""
    size, patch = Vec3(67, 12, 139), Vec3(31, 11, 37)
    values = np.random.default_rng(0).random((2, *size), np.float32)
    wanted = NewOutput(2, size, sharded=sharded)
    found = written(str(tmp_path / "out.zarr"), wanted, patch, values)
    np.testing.assert_array_equal(found[...], values)


@pytest.mark.parametrize("compression", get_args(Compression))
@pytest.mark.parametrize("sharded", [False, True])
def test_files_are_those_that_zarr_writes(
    tmp_path: Path, compression: Compression, sharded: bool
) -> None:
    size, patch = Vec3(128, 64, 100), Vec3(128, 64, 64)
    values = np.random.default_rng(0).random((2, *size), np.float32).round(1)
    values[0, :64] = 0  # empty, so not stored
    wanted = NewOutput(2, size, compression=compression, sharded=sharded)
    ours = written(str(tmp_path / "ours.zarr"), wanted, patch, values)
    theirs = zarr.create_array(tmp_path / "theirs.zarr", **_like(ours))
    theirs[...] = values
    found = _files(tmp_path / "ours.zarr" / "0")
    expected = _files(tmp_path / "theirs.zarr")
    if compression == "gzip":  # gzip files contain the time
        assert found.keys() == expected.keys()
    else:
        assert found == expected


def _like(array: Any) -> dict[str, Any]:
    return {
        "shape": array.shape,
        "dtype": array.dtype,
        "chunks": array.chunks,
        "shards": array.shards,
        "compressors": array.compressors,
        "zarr_format": 3,
    }


def _files(folder: Path) -> dict[str, bytes]:
    chunks = folder / "c"
    return {
        str(path.relative_to(chunks)): path.read_bytes()
        for path in chunks.rglob("*")
        if path.is_file()
    }


def test_results_come_in_order_and_no_more_than_allowed_are_begun() -> None:
    begun, most, lock = 0, 0, Lock()

    def task(item: int) -> int:
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun)
        return item * item

    found = []
    for result in mapped(task, range(50), 3):
        found.append(result)
        with lock:
            begun -= 1
    assert found == [item * item for item in range(50)]
    assert most <= 4  # one more chunk begins when the first result is ready


def test_a_failure_is_raised_as_itself_and_nothing_begins_after_it() -> None:
    done = []

    def task(item: int) -> None:
        if item == 2:
            raise ValueError("third")
        done.append(item)

    with pytest.raises(ValueError, match="third"):
        list(mapped(task, range(1000), 2))
    assert set(done) <= {0, 1, 3, 4}
    assert {0, 1} <= set(done)
