"""A written OME-Zarr is complete, and has its input's position in space."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from command_line import OUTPUT, attributes, read_main, refused, succeeds, voxels
from zarr_outputs import (
    FIRST,
    PLACES,
    SECOND,
    SIZE,
    as_written,
    begun,
    exists,
    new_output,
    write,
)

from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid, NewOutput
from znni.volumes.formats.zarr.output import ZarrOutput
from znni.volumes.locate import open_volume

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "memory_files")

INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out")


@pytest.mark.parametrize("place", PLACES)
def test_an_output_is_chunked_described_and_whole(place: str) -> None:
    output = begun(place, grid=Grid((4, 0.5, 0.5), (8, 1, 1.5), ("nanometer", None, None)))
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


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_the_output_of_a_zarr_lies_on_its_input(place: str, version: str) -> None:
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
    succeeds("infer", "in.zarr", "--net", "tiny.yaml", "--out", "noted.h5")
    noted = attributes("noted.h5")
    assert noted["voxel_size"].tolist() == [2, 0.5, 0.25]
    assert noted["voxel_origin"].tolist() == [10, 21, 30.75]
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
    assert said.startswith("out.h5: HDF5 takes no --sharded; leave it out")
    said = refused(*INFER, "out.h5", "--compression", "zstd")
    assert said.startswith("out.h5: HDF5 takes no --compression zstd")
    assert "'lz5'; choose one of zstd, gzip, none; see" in refused(
        *INFER, "out.zarr", "--compression", "lz5"
    )
    with pytest.raises(InvalidInput, match="compression is 'lz5'; choose one of zstd, gzip, none"):
        NewOutput(1, SIZE, compression="lz5")  # type: ignore[arg-type]


@pytest.mark.parametrize("pyramid", [False, True])
def test_a_small_output_of_one_block_is_written_at_once(
    pyramid: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, syncs, found = tmp_path / "folder", list[None](), list[object]()
    folder.mkdir()
    place = str(folder / "out.zarr")
    box = Box(Vec3(0, 0, 0), SIZE)
    values = np.random.default_rng(0).random((2, *SIZE), np.float32)
    monkeypatch.setattr("znni.volumes.partial_folder.os.sync", lambda: syncs.append(None))

    def written(held: int) -> ZarrOutput:
        monkeypatch.setattr("znni.volumes.partial_output.HELD_BYTES", held)
        output = new_output(place, pyramid=pyramid, maps=("one", "other"))
        output.note_plan("a plan")
        output.begin({"plan": "a plan", "seconds": 0.0}, SIZE)
        output.write(box, values)
        assert any(Path(f"{place}.partial").iterdir()) == (not held)
        np.testing.assert_array_equal(output.read(box), values)
        return output

    for held in (0, 1 << 20):
        written(held).finish({"seconds": 0.5})
        assert [path.name for path in folder.iterdir()] == ["out.zarr"]
        files = sorted(path for path in Path(place).rglob("*") if path.is_file())
        found.append([(str(path), path.read_bytes()) for path in files])
        shutil.rmtree(place)
    assert found[0] == found[1]
    assert len(syncs) == 3  # of the first one, before its block and at its end
    output = written(1 << 20)
    monkeypatch.setattr("znni.volumes.partial_folder.os.sync", full_disk)
    with pytest.raises(RunFailed, match="cannot be written: No space left"):
        output.finish({"seconds": 0.5})
    assert output.abandon() == f"{place} was not made"
    assert list(folder.iterdir()) == []


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")
