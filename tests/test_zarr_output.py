"""An OME-Zarr that is written is whole, lies where its input lies, and never looks whole before."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from command_line import OUTPUT, read_main, refused, succeeds, voxels, write_case
from fakes import fake_catalogue
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from znni.engine.pipeline import bytes_per_output_voxel, convert
from znni.errors import InvalidInput, RunFailed
from znni.shapes import Box, Vec3
from znni.volume import Grid, NewOutput
from znni.volumes.locate import open_volume
from znni.volumes.partial_file import hold
from znni.volumes.partial_folder import PartialFolder
from znni.volumes.remote_folder import RemoteFolder
from znni.volumes.zarr_output import MOST_SHARD_VOXELS, ZarrOutput, chunk_and_shard

PLACES = ("out.zarr", "memory://out.zarr")
SIZE = Vec3(3, 70, 9)
FIRST, SECOND = Box(Vec3(0, 0, 0), Vec3(3, 40, 9)), Box(Vec3(0, 40, 0), SIZE)
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_case(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue())
    yield tmp_path
    MemoryFileSystem.store.clear()


def new_output(place: str, **options: Any) -> ZarrOutput:
    return ZarrOutput(place, NewOutput(2, SIZE, **options))


def described(place: str, **options: Any) -> ZarrOutput:
    output = new_output(place, **options)
    output.describe({"plan": "long", "voxel_offset": (1, 2, 3), "seconds": 0.0}, FIRST.size)
    return output


def write(output: ZarrOutput, box: Box, value: float) -> None:
    output.write(box, np.full((2, *box.size), value, np.float32))


def exists(place: str) -> bool:
    files, path = fsspec.core.url_to_fs(place)
    found: bool = files.exists(path)
    return found


def as_written(place: str) -> str:
    """Where a place is written until it is whole."""
    return place if "://" in place else f"{place}.partial"


@pytest.mark.parametrize("place", PLACES)
def test_an_output_is_chunked_described_and_whole(place: str) -> None:
    output = described(place, grid=Grid((4, 0.5, 0.5), (8, 1, 1.5), ("nanometer", None, None)))
    write(output, FIRST, 1)
    with pytest.raises(zarr.errors.NodeNotFoundError):
        zarr.open(as_written(place), mode="r")
    assert exists(f"{place}.partial")
    part = zarr.open_array(f"{as_written(place)}/0", mode="r")
    assert (part[:, :, :40] == 1).all()
    assert not part[:, :, 40:].any()
    write(output, SECOND, 2)
    output.finish({"seconds": 0.5})
    assert not exists(f"{place}.partial")
    array = zarr.open_array(f"{place}/0", mode="r")
    assert (array.shape, array.dtype, array.chunks) == ((2, *SIZE), np.float32, (1, 3, 40, 9))
    assert array.metadata.zarr_format == 3
    assert array.metadata.dimension_names == ("c", "z", "y", "x")
    assert array[0, 0, :, 0].tolist() == [1] * 40 + [2] * 30
    assert dict(array.attrs) == {"plan": "long", "voxel_offset": [1, 2, 3], "seconds": 0.5}
    assert zarr.open_group(place, mode="r").attrs["ome"] == {
        "version": "0.5",
        "multiscales": [
            {
                "name": "out",
                "axes": [
                    {"name": "c", "type": "channel"},
                    {"name": "z", "type": "space", "unit": "nanometer"},
                    {"name": "y", "type": "space"},
                    {"name": "x", "type": "space"},
                ],
                "datasets": [
                    {
                        "path": "0",
                        "coordinateTransformations": [
                            {"type": "scale", "scale": [1, 4, 0.5, 0.5]},
                            {"type": "translation", "translation": [0, 8, 1, 1.5]},
                        ],
                    }
                ],
            }
        ],
    }


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_run_from_zarr_to_zarr_lies_on_its_input(place: str, version: str) -> None:
    axes = [{"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    steps = [
        {"type": "scale", "scale": [1, 2, 0.5, 0.25]},
        {"type": "translation", "translation": [0, 10, 20, 30]},
    ]
    image = {"axes": axes, "datasets": [{"path": "raw", "coordinateTransformations": steps}]}
    group = zarr.create_group("in.zarr", zarr_format=3 if version == "0.5" else 2)
    group.create_array("raw", data=voxels()[np.newaxis], chunks=(1, 4, 8, 8))
    metadata = {"version": version, "multiscales": [image | {"version": version}]}
    group.update_attributes({"ome": metadata} if version == "0.5" else metadata)
    succeeds(*INFER, "out.h5")
    whole = read_main("out.h5")
    for name, options, inside, origin in (
        ("valid", (), np.s_[:], (10, 21, 30.75)),
        ("roi", ("--roi", "1:5,4:10,6:9"), np.s_[:, 1:5, 2:8, 3:6], (12, 22, 31.5)),
    ):
        out = place.replace("out", name)
        succeeds("infer", "in.zarr", "--net", "tiny.yaml", "--out", out, *options)
        volume = open_volume(out)
        assert volume.grid == Grid((2, 0.5, 0.25), origin, ("micrometer",) * 3)
        found = volume.read(Box(Vec3(0, 0, 0), volume.size))
        np.testing.assert_allclose(found, whole[inside], rtol=0, atol=1e-6)
    out = place.replace("out", "same")
    succeeds("infer", "in.zarr", "--net", "tiny.yaml", "--out", out, "--border", "same")
    same = open_volume(out)
    assert same.size == voxels().shape
    assert same.grid.translation == (10, 20, 30)
    inner = same.read(Box(Vec3(0, 2, 3), Vec3(6, 17, 19)))
    np.testing.assert_allclose(inner, whole, rtol=0, atol=1e-6)


def test_an_hdf5_output_notes_where_its_voxels_lie() -> None:
    group = zarr.create_group("in.zarr")
    group.create_array("raw", data=voxels())
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    steps = [{"type": "scale", "scale": [3, 1, 1]}]
    image = {"axes": axes, "datasets": [{"path": "raw", "coordinateTransformations": steps}]}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    succeeds("infer", "in.zarr", "--net", "tiny.yaml", "--out", "out.h5")
    told = succeeds("info", "out.h5")
    assert "voxel_size: [3. 1. 1.]" in told
    assert "voxel_origin: [0. 2. 3.]" in told


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
@pytest.mark.parametrize("sharded", [False, True])
def test_compression_and_shards(compression: str, sharded: bool) -> None:
    options = ("--compression", compression, *(["--sharded"] if sharded else []))
    succeeds(*INFER, "out.zarr", *options, "--dtype", "float16")
    succeeds(*INFER, "out.h5", "--dtype", "float16")
    array = zarr.open_array("out.zarr/0", mode="r")
    np.testing.assert_array_equal(array[...], read_main("out.h5"))
    assert array.shards == ((1, *OUTPUT[1:]) if sharded else None)
    names = {"zstd": ["ZstdCodec"], "gzip": ["GzipCodec"], "none": []}
    assert [type(codec).__name__ for codec in array.compressors] == names[compression]
    assert f"{names[compression] or ['uncompressed']}"[2:-2] in succeeds("info", "out.zarr")


def test_options_that_other_outputs_do_not_have() -> None:
    said = refused(*INFER, "out.h5", "--sharded")
    assert said.startswith("out.h5: HDF5 takes no sharded=True (--sharded); leave it out")
    said = refused(*INFER, "out.h5", "--compression", "zstd")
    assert said.startswith("out.h5: HDF5 takes no compression='zstd' (--compression zstd)")
    assert "'lz5' is not one of 'zstd', 'gzip', 'none'" in refused(
        *INFER, "out.zarr", "--compression", "lz5"
    )
    with pytest.raises(InvalidInput, match="compression is 'lz5'; choose one of zstd, gzip, none"):
        NewOutput(1, SIZE, compression="lz5")  # type: ignore[arg-type]


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


@pytest.mark.parametrize("sharded", [False, True])
def test_blocks_that_share_chunks(sharded: bool) -> None:
    """Extents without divisors: chunks that two blocks lie in hold the values of both."""
    size, patch = Vec3(67, 12, 139), Vec3(31, 11, 37)
    values = np.random.default_rng(0).random((2, *size)).astype(np.float32)
    output = ZarrOutput("out.zarr", NewOutput(2, size, sharded=sharded))
    output.describe({}, patch)
    for z in range(0, size.z, patch.z):
        for y in range(0, size.y, patch.y):
            for x in range(0, size.x, patch.x):
                start = Vec3(z, y, x)
                box = Box(start, (start + patch).minimum(size))
                output.write(box, values[:, *box.slices])
    output.finish({})
    np.testing.assert_array_equal(zarr.open_array("out.zarr/0", mode="r")[...], values)


@pytest.mark.parametrize("place", PLACES)
def test_an_abandoned_output_keeps_its_blocks_and_is_no_image(place: str) -> None:
    assert new_output(place).abandon() == f"{place} was not made"
    assert not exists(place)
    assert not exists(f"{place}.partial")
    output = described(place)
    assert output.abandon() == f"{place} was not made"
    assert not exists(f"{place}.partial")
    output = described(place)
    write(output, FIRST, 1)
    told = output.abandon()
    again = "" if "://" in place else "; the same command goes on from there"
    assert told == f"{place} was not made; {as_written(place)}/0 holds 1 finished block{again}"
    assert exists(f"{place}.partial")
    with pytest.raises(InvalidInput):
        open_volume(as_written(place))
    assert (open_volume(f"{as_written(place)}/0").read(FIRST) == 1).all()
    if "://" in place:
        with pytest.raises(
            InvalidInput, match=r"out.zarr.partial: exists, so .*\(--overwrite\) to delete"
        ):
            new_output(place)
    again = described(place, overwrite="://" in place)
    write(again, SECOND, 2)
    again.finish({})
    assert not open_volume(place).read(FIRST).any()
    assert not exists(f"{place}.partial")


@pytest.mark.parametrize("place", PLACES)
def test_two_runs_cannot_write_one_place(place: str) -> None:
    first = described(place)
    write(first, FIRST, 1)
    with pytest.raises(InvalidInput, match=r"out\.zarr\.partial: (is in use, as by|exists, so) an"):
        new_output(place)
    write(first, SECOND, 1)
    first.finish({})
    assert (open_volume(place).read(Box(Vec3(0, 0, 0), SIZE)) == 1).all()


def test_a_run_that_waited_for_another_does_not_take_its_output() -> None:
    """It opened the partial folder just before that was completed."""
    first = PartialFolder("out.zarr", (), overwrite=False)
    late = os.open("out.zarr.partial", os.O_RDONLY)
    first.complete()
    with pytest.raises(InvalidInput, match="is in use"):
        hold(late, Path("out.zarr.partial"))
    os.close(late)


def test_an_output_that_exists(folder: Path) -> None:
    succeeds(*INFER, "out.zarr")
    before = json.loads(Path("out.zarr/0/zarr.json").read_text())
    assert "out.zarr: exists; give overwrite=True (--overwrite) to" in refused(*INFER, "out.zarr")
    assert json.loads(Path("out.zarr/0/zarr.json").read_text()) == before
    succeeds(*INFER, "out.zarr", "--overwrite", "--roi", "1:5,4:10,6:9")
    assert open_volume("out.zarr").size == (4, 6, 3)
    Path("file.zarr").write_text("precious")
    assert "file.zarr: exists" in refused(*INFER, "file.zarr")
    succeeds(*INFER, "file.zarr", "--overwrite")
    (folder / "other.zarr").mkdir()
    (folder / "other.zarr" / "thesis.tex").write_text("precious")
    said = refused(*INFER, "other.zarr", "--overwrite")
    assert said == "other.zarr: is a folder of something else, and is not replaced; name another"
    assert (folder / "other.zarr" / "thesis.tex").read_text() == "precious"
    left = {path.name for path in folder.iterdir() if path.suffix in (".partial", ".replaced")}
    assert not left


def test_a_url_that_exists() -> None:
    place = "memory://out.zarr"
    succeeds(*INFER, place)
    assert "out.zarr: exists; give overwrite=True (--overwrite) to" in refused(*INFER, place)
    succeeds(*INFER, place, "--overwrite", "--roi", "1:5,4:10,6:9")
    assert open_volume(place).size == (4, 6, 3)
    files = fsspec.filesystem("memory")
    files.pipe_file("/other.zarr/thesis.tex", b"precious")
    said = refused(*INFER, "memory://other.zarr", "--overwrite")
    assert "is a folder of something else, and is not deleted; name another" in said
    assert files.cat_file("/other.zarr/thesis.tex") == b"precious"


def test_a_failure_leaves_the_output_that_it_should_replace() -> None:
    succeeds(*INFER, "out.zarr")
    output = described("out.zarr", overwrite=True)
    write(output, FIRST, 1)
    output.abandon()
    assert open_volume("out.zarr").size == OUTPUT[1:]


def test_the_input_as_output() -> None:
    zarr.create_array("memory://in.zarr/raw", data=voxels())
    run = ("infer", "memory://in.zarr/raw", "--net", "tiny.yaml", "--overwrite", "--out")
    assert "memory://in.zarr: is the input" in refused(*run, "memory://in.zarr")
    succeeds(*INFER, "in.zarr")
    for source in ("in.zarr", "in.zarr/0", "in.zarr:/0", f"file://{Path.cwd()}/in.zarr"):
        run = ("infer", source, "--net", "tiny.yaml", "--overwrite", "--out")
        assert "in.zarr: is the input" in refused_before_maps(*run, "in.zarr")
    Path("in.zarr").rename("kept.zarr.partial")
    run = ("infer", "kept.zarr.partial", "--net", "tiny.yaml", "--out", "kept.zarr")
    assert "kept.zarr.partial: is the input" in refused_before_maps(*run)


def refused_before_maps(*arguments: object) -> str:
    """For an input of two maps, as the network's output has: let it take them."""
    text = Path("tiny.yaml").read_text().replace("weights: tiny.npz\n", "in_features: 2\n")
    Path("tiny.yaml").write_text(text)
    return refused(*arguments, "--random-weights", 1)


def test_places_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no folder none" in refused(*INFER, "none/out.zarr")
    assert "cannot be written there: File name too long" in refused(*INFER, "x" * 260 + ".zarr")
    assert "Protocol not known: nonesuch; check the URL" in refused(*INFER, "nonesuch://out.zarr")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    said = refused(*INFER, "s3://bucket/out.zarr")
    assert said.endswith("Install s3fs to access S3; pip install it")
    Path("taken.zarr.partial").write_text("a file")
    assert "taken.zarr: cannot be written there: File exists" in refused(*INFER, "taken.zarr")

    class Usage:
        free = 2**10

    monkeypatch.setattr("shutil.disk_usage", lambda _path: Usage)
    said = refused(*INFER, "out.zarr", "--compression", "none")
    assert "the output takes 11 KiB and the disk has 1 KiB free" in said
    assert not (folder / "out.zarr.partial").exists()


def test_a_url_of_which_a_part_cannot_be_read() -> None:
    group = zarr.create_group("memory://in.zarr")
    group.create_array("raw", data=voxels())
    fsspec.filesystem("memory").pipe_file("/in.zarr/raw/c/0/0/0", b"something else")
    run = ("infer", "memory://in.zarr", "--net", "tiny.yaml", "--out", "out.h5")
    said = refused(*run, code=4)
    assert "memory://in.zarr:/raw: cannot be read at " in said
    assert "; check the data, the network, and that the server gives parts of files" in said


@pytest.mark.parametrize("place", PLACES)
def test_a_store_that_fails(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = described(place)
    write(output, FIRST, 1)

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    async def fail(*_arguments: Any, **_options: Any) -> None:
        refuse()

    for store in (zarr.storage.LocalStore, zarr.storage.FsspecStore):
        monkeypatch.setattr(store, "set", fail)
    for folder in (PartialFolder, RemoteFolder):
        monkeypatch.setattr(folder, "put", refuse)
    said = rf"{as_written(place)}: cannot be written: No space left on device; make room"
    for act in (lambda: write(output, SECOND, 2), lambda: output.finish({"seconds": 1.0})):
        with pytest.raises(RunFailed, match=said):
            act()
    assert "1 finished block" in output.abandon()
    assert exists(f"{place}.partial")
    with pytest.raises(InvalidInput):
        open_volume(as_written(place))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("features", [1, 2])
def test_a_block_on_its_way_out_takes_what_is_counted(
    features: int, dtype: Any, sharded: bool
) -> None:
    size = Vec3(96, 128, 160)
    dense = np.random.default_rng(0).random((features, *(size + 1)), np.float32)
    wanted = NewOutput(features, size * 2, dtype, sharded=sharded)
    output = ZarrOutput("out.zarr", wanted)
    output.describe({}, size)
    box = Box(Vec3(0, 0, 0), size)
    tracemalloc.start()
    try:
        output.write(box, convert(dense[:, *box.slices], dtype))
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        output.abandon()
    beside_two_blocks = (bytes_per_output_voxel(dtype) - 2 * 4) * features * size.volume
    assert taken <= 1.05 * beside_two_blocks
