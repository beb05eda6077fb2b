"""Zarr volumes, of both versions, with OME metadata and without, are read right or refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from numpy.typing import NDArray

from znni.errors import InvalidInput, RunFailed, ZnniError
from znni.shapes import Box, Vec3
from znni.volumes.locate import describe_volume, open_volume, split_dataset, stem

SIZE = (5, 6, 7)
BOX = Box(Vec3(1, 2, 0), Vec3(4, 3, 7))
VALUES = np.random.default_rng(0).integers(0, 250, (3, *SIZE))
AXES = [
    {"name": "t", "type": "time"},
    {"name": "c", "type": "channel"},
    {"name": "z", "type": "space", "unit": "nanometer"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]
SCALE = {"t": 9.0, "c": 1.0, "z": 40.0, "y": 0.5, "x": 0.25}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    MemoryFileSystem.store.clear()


def axes_of(letters: str) -> list[dict[str, str]]:
    return [axis for letter in letters for axis in AXES if axis["name"] == letter]


def write_image(
    place: str,
    letters: str = "tczyx",
    version: str = "0.5",
    levels: tuple[str, ...] = ("0", "1"),
    **options: Any,
) -> None:
    """VALUES as an image with the axes given, each level of it half as fine as the one before."""
    datasets = []
    root = zarr.create_group(place, zarr_format=3 if version == "0.5" else 2)
    for index, path in enumerate(levels):
        step = 2**index
        values = np.expand_dims(VALUES[:, ::step, ::step, ::step].astype("uint16"), 0)
        present = values[tuple(slice(None) if a in letters else 0 for a in "tczyx")]
        ordered = [letter for letter in "tczyx" if letter in letters]
        present = present.transpose([ordered.index(letter) for letter in letters])
        settings = {"chunks": (2,) * present.ndim, **options}
        array = root.create_array(path, shape=present.shape, dtype="uint16", **settings)
        array[...] = present
        scale = [SCALE[a] * (step if a in "zyx" else 1) for a in letters]
        shift = [(step - 1) * SCALE[a] / 2 if a in "zyx" else 0.0 for a in letters]
        transformations = [
            {"type": "scale", "scale": scale},
            {"type": "translation", "translation": shift},
        ]
        datasets.append({"path": path, "coordinateTransformations": transformations})
    image = {"axes": axes_of(letters), "datasets": datasets, "name": "cells"}
    if version == "0.5":
        root.attrs["ome"] = {"version": version, "multiscales": [image]}
    else:
        root.attrs["multiscales"] = [{"version": version, **image}]


def change_metadata(place: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = Path(place) / "zarr.json"
    everything = json.loads(path.read_text())
    change(everything["attributes"]["ome"]["multiscales"][0])
    path.write_text(json.dumps(everything))


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize("place", ["cells.zarr", "memory://cells.zarr"])
def test_an_image_of_both_versions(place: str, version: str) -> None:
    write_image(place, version=version)
    for source, dataset in ((place, None), (place, "0"), (f"{place}:/0", None), (f"{place}/0", "")):
        volume = open_volume(source, dataset)
        assert (volume.features, volume.size, volume.itemsize) == (3, SIZE, 2)
        np.testing.assert_array_equal(volume.read(BOX), VALUES[:, *BOX.slices])
        assert volume.grid.scale == (40, 0.5, 0.25)
        assert volume.grid.translation == (0, 0, 0)
        assert volume.grid.units == ("nanometer", "micrometer", "micrometer")
    coarse = open_volume(place, "1")
    assert coarse.size == (3, 3, 4)
    assert coarse.grid.scale == (80, 1, 0.5)
    assert coarse.grid.translation == (20, 0.25, 0.125)
    np.testing.assert_array_equal(
        coarse.read(Box(Vec3(0, 0, 0), coarse.size)), VALUES[:, ::2, ::2, ::2]
    )
    described = describe_volume(place)
    assert "/0 (1, 3, 5, 6, 7) uint16" in described
    assert "/1 (1, 3, 3, 3, 4) uint16" in described
    assert "axes t c z y x, voxels of (80 nanometer, 1 micrometer, 0.5 micrometer)" in described
    assert "/1" not in describe_volume(f"{place}:/0")


@pytest.mark.parametrize("letters", ["zyx", "czyx", "tczyx", "zcyx", "xyz", "xyzct", "cyx", "yx"])
def test_axes_in_any_order(letters: str) -> None:
    write_image("cells.zarr", letters)
    volume = open_volume("cells.zarr")
    expected = VALUES if "c" in letters else VALUES[:1]
    expected = expected if "z" in letters else expected[:, :1]
    assert (volume.features, volume.size) == (expected.shape[0], expected.shape[1:])
    box = Box(Vec3(0, 2, 1), Vec3(volume.size.z, 5, 7))
    np.testing.assert_array_equal(volume.read(box), expected[:, *box.slices])
    assert volume.grid.scale == (40.0 if "z" in letters else 1.0, 0.5, 0.25)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (1, 1, 2, 3, 4), "shards": (1, 3, 4, 6, 8)},
        {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle")},
        {"compressors": zarr.codecs.GzipCodec()},
        {"compressors": None},
        {"filters": zarr.codecs.TransposeCodec(order=(4, 3, 2, 1, 0))},
    ],
)
def test_shards_and_codecs(options: dict[str, Any]) -> None:
    write_image("cells.zarr", levels=("scale0/image",), **options)
    volume = open_volume("cells.zarr")
    np.testing.assert_array_equal(volume.read(BOX), VALUES[:, *BOX.slices])


def test_transformations_of_the_whole_image_come_after_those_of_a_level() -> None:
    write_image("cells.zarr", "zyx")
    whole = [
        {"type": "scale", "scale": [10, 10, 10]},
        {"type": "translation", "translation": [1, 2, 3]},
        {"type": "identity"},
    ]
    change_metadata("cells.zarr", lambda image: image.update(coordinateTransformations=whole))
    grid = open_volume("cells.zarr", "1").grid
    assert grid.scale == (800, 10, 5)
    assert grid.translation == (201, 4.5, 4.25)


def test_old_metadata() -> None:
    """Version 0.3 names axes without types; 0.1 and 0.2 have all five, without names."""
    for axes, version in ((list("tczyx"), "0.3"), (None, "0.1")):
        shutil.rmtree("old.zarr", ignore_errors=True)
        write_image("old.zarr", version="0.4")
        attributes = json.loads(Path("old.zarr/.zattrs").read_text())
        image = attributes["multiscales"][0]
        image |= {"version": version, "datasets": [{"path": "0"}]}
        del image["axes"]
        if axes:
            image["axes"] = axes
        Path("old.zarr/.zattrs").write_text(json.dumps(attributes))
        volume = open_volume("old.zarr")
        np.testing.assert_array_equal(volume.read(BOX), VALUES[:, *BOX.slices])
        assert volume.grid.scale == (1, 1, 1)


@pytest.mark.parametrize("version", [2, 3])
def test_arrays_without_metadata(version: Any) -> None:
    values = VALUES[0].astype(">f4")
    array = zarr.create_array(
        "plain.zarr", shape=SIZE, dtype=">f4", chunks=(2, 3, 4), zarr_format=version
    )
    array[...] = values
    volume = open_volume("plain.zarr")
    np.testing.assert_array_equal(volume.read(BOX), values[np.newaxis, *BOX.slices])
    root = zarr.create_group("group.zarr", zarr_format=version)
    for path, shape in (("raw/a", SIZE), ("list", (4,))):
        root.create_array(path, shape=shape, dtype="u1")[...] = 7
    assert open_volume("group.zarr").size == SIZE
    root.create_array("b", shape=(2, *SIZE), dtype="u1")[...] = 8
    for source, dataset, value in (
        ("group.zarr", "raw/a", 7),
        ("group.zarr:b", "/b", 8),
        ("group.zarr/raw/a", None, 7),
        ("group.zarr:/raw", None, 7),
    ):
        assert (open_volume(source, dataset).read(BOX) == value).all()
    with pytest.raises(InvalidInput, match=r"/b \(2, 5, 6, 7\) uint8, /raw/a .*--dataset /b"):
        open_volume("group.zarr")


def test_an_image_among_others() -> None:
    zarr.create_group("plate.zarr")
    write_image("plate.zarr/A/1/0")
    zarr.create_group("plate.zarr/A/1")
    zarr.create_group("plate.zarr/A")
    for source in ("plate.zarr", "plate.zarr/A/1/0", "plate.zarr:/A/1/0/0"):
        volume = open_volume(source)
        assert volume.grid.scale == (40, 0.5, 0.25)
        np.testing.assert_array_equal(volume.read(BOX), VALUES[:, *BOX.slices])


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/cells.zarr", ("s3://bucket/cells.zarr", None)),
        ("s3://bucket/cells.zarr/0", ("s3://bucket/cells.zarr/0", None)),
        ("https://host:8080/cells.zarr", ("https://host:8080/cells.zarr", None)),
        ("https://host:8080/cells.zarr/:/0", ("https://host:8080/cells.zarr", "/0")),
        ("s3://bucket/cells.ZARR:raw", ("s3://bucket/cells.ZARR", "raw")),
        ("file:///data/cells.zarr:raw", ("/data/cells.zarr", "raw")),
    ],
)
def test_urls_with_and_without_datasets(url: str, parts: tuple[str, str | None]) -> None:
    assert split_dataset(url) == parts
    assert stem(url) == "cells"


def remove_level() -> None:
    shutil.rmtree("cells.zarr/0")


def group_for_level() -> None:
    remove_level()
    zarr.open_group("cells.zarr").create_group("0")


def several_times() -> None:
    root = zarr.open_group("cells.zarr")
    del root["0"]
    root.create_array("0", shape=(2, 3, *SIZE), dtype="u1")


def rewrite(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[], object]:
    return lambda: change_metadata("cells.zarr", change)


def transformed(**step: object) -> Callable[[], object]:
    return edit(lambda image: image.update(coordinateTransformations=[step]))


FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "no such": (lambda: shutil.rmtree("cells.zarr"), "cells.zarr: no such file; check the path"),
    "no metadata": (lambda: Path("cells.zarr/zarr.json").unlink(), "cells.zarr: holds no Zarr"),
    "not JSON": (lambda: Path("cells.zarr/zarr.json").write_text("{"), "cannot be read as Zarr"),
    "no level": (remove_level, "has a resolution '0' that is not there"),
    "a group": (group_for_level, "has a resolution '0' that is a group and no array"),
    "two times": (several_times, r"cells.zarr:/0 has axes .* 2 points in time along t; "),
    "codec": (lambda: rewrite("cells.zarr/0/zarr.json", '"zstd"', '"magic"'), "codec: 'magic'"),
    "type": (lambda: rewrite("cells.zarr/0/zarr.json", "uint16", "int4"), "type found .* 'int4'"),
    "no shape": (lambda: rewrite("cells.zarr/0/zarr.json", '"shape"', '"form"'), "cells.zarr"),
    "root of nothing": (lambda: Path("cells.zarr/zarr.json").write_text("[]"), "as Zarr: .* whole"),
    "no images": (
        lambda: zarr.open_group("cells.zarr").attrs.update(ome={"multiscales": []}),
        "its OME metadata lists no image",
    ),
    "no datasets": (edit(lambda i: i.pop("datasets")), "NGFF .*0.datasets: Field required"),
    "empty": (edit(lambda i: i["datasets"].clear()), "multiscales.0.datasets: "),
    "axes too few": (edit(lambda i: i["axes"].pop()), "without a number for each of its axes"),
    "axes unnamed": (edit(lambda i: i["axes"][0].clear()), "multiscales.0.axes.0"),
    "no y": (
        edit(lambda i: i["axes"][3].update(name="q")),
        r"axes \(t, c, z, q, x\); a volume needs y and x",
    ),
    "path": (transformed(type="scale", path="file"), "transformation 'scale' without a number"),
    "rotated": (transformed(type="rotation"), "transformation 'rotation' without a number"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_read_is_refused(name: str) -> None:
    write_image("cells.zarr")
    spoil, said = FAULTS[name]
    spoil()
    with pytest.raises(InvalidInput, match=said):
        open_volume("cells.zarr")


@pytest.mark.parametrize(
    ("dtype", "shape", "said"),
    [
        ("complex64", SIZE, "holds complex64"),
        ("float32", (5, 6), r"has no array with axes \(z, y, x\).* /array \(5, 6\)"),
        ("float32", (5, 0, 6), "holds no voxels"),
    ],
)
def test_arrays_that_are_no_volumes(dtype: str, shape: tuple[int, ...], said: str) -> None:
    zarr.create_group("group.zarr").create_array("array", shape=shape, dtype=dtype)
    with pytest.raises(InvalidInput, match=said):
        open_volume("group.zarr")


def test_a_dataset_that_is_not_there() -> None:
    write_image("cells.zarr")
    with pytest.raises(InvalidInput, match=r"has no dataset '7'; it has /0 .*, /1 "):
        open_volume("cells.zarr", "7")
    zarr.create_group("empty.zarr")
    with pytest.raises(InvalidInput, match="it has none that can be listed"):
        open_volume("empty.zarr")


@pytest.mark.parametrize("compressor", [None, "zstd", "gzip"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_chunk_that_was_cut(compressor: str | None, share: float) -> None:
    codec = {None: None, "zstd": zarr.codecs.ZstdCodec(), "gzip": zarr.codecs.GzipCodec()}
    write_image("cells.zarr", "zyx", compressors=codec[compressor])
    chunk = Path("cells.zarr/0/c/1/1/0")
    chunk.write_bytes(chunk.read_bytes()[: int(share * chunk.stat().st_size)])
    volume = open_volume("cells.zarr")
    with pytest.raises(RunFailed, match=r"cells.zarr:/0: cannot be read at 1:4,2:3,0:7: .*; check"):
        volume.read(BOX)


def test_a_shard_that_was_cut() -> None:
    write_image("cells.zarr", "zyx", shards=(4, 6, 8), chunks=(2, 2, 2))
    shard = Path("cells.zarr/0/c/0/0/0")
    shard.write_bytes(shard.read_bytes()[:99])
    with pytest.raises(RunFailed, match=r"cells.zarr:/0: cannot be read at 1:4"):
        open_volume("cells.zarr").read(BOX)


class Unreachable(MemoryFileSystem):
    """A server whose files are found until it goes away, and which lists nothing."""

    protocol = "unreachable"
    away = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("unreachable://", "memory://"))
        return stripped

    def cat_file(self, *arguments: Any, **options: Any) -> bytes:
        if Unreachable.away:
            raise ConnectionError("nobody answers")
        found: bytes = super().cat_file(*arguments, **options)
        return found

    def ls(self, *_arguments: Any, **_options: Any) -> list[str]:
        raise NotImplementedError("no listing")


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    write_image("memory://cells.zarr")
    zarr.create_group("memory://listed.zarr").create_array("raw", shape=SIZE, dtype="u1")[...] = 3
    assert (open_volume("unreachable://listed.zarr/raw").read(BOX) == 3).all()
    with pytest.raises(InvalidInput, match="cannot be read as Zarr: no listing"):
        open_volume("unreachable://listed.zarr")
    volume = open_volume("unreachable://cells.zarr")
    np.testing.assert_array_equal(volume.read(BOX), VALUES[:, *BOX.slices])
    monkeypatch.setattr(Unreachable, "away", True)
    with pytest.raises(RunFailed, match=r"unreachable://cells.zarr:/0: .*: nobody answers; check"):
        volume.read(BOX)
    with pytest.raises(InvalidInput, match="as Zarr: nobody answers; check the URL, the network"):
        open_volume("unreachable://cells.zarr")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonesuch://host/cells.zarr", "Protocol not known: nonesuch"),
        ("s3://bucket/cells.h5", "HDF5 files are read from this machine only; copy it here"),
        ("memory://none.zarr", "holds no Zarr"),
    ],
)
def test_urls_that_cannot_be_read(url: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        open_volume(url)


def test_libraries_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    write_image("cells.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    for function in (open_volume, describe_volume):
        with pytest.raises(ZnniError, match=r"zarr is needed .*; pip install 'znni\[zarr\]'"):
            function("cells.zarr")


def test_values_are_read_in_boxes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box touches its own chunks, and no other."""
    write_image("cells.zarr", "zyx", chunks=(2, 3, 4))
    volume = open_volume("cells.zarr")
    read: list[str] = []
    real = zarr.storage.LocalStore.get

    async def get(self: Any, key: str, *arguments: Any, **options: Any) -> Any:
        read.append(key)
        return await real(self, key, *arguments, **options)

    monkeypatch.setattr(zarr.storage.LocalStore, "get", get)
    part: NDArray[Any] = volume.read(Box(Vec3(2, 0, 0), Vec3(4, 3, 4)))
    np.testing.assert_array_equal(part[0], VALUES[0, 2:4, :3, :4])
    assert read == ["0/c/1/0/0"]
