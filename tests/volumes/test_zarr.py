"""Zarr volumes of both versions are read correctly, with and without OME metadata."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from zarr_images import BOX, SIZE, VALUES, change_metadata, write_image

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.volumes.locate import describe_volume, open_volume, split_dataset, stem

pytestmark = pytest.mark.usefixtures("own_folder", "memory_files")


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
    with pytest.raises(InvalidInput, match=r"/b \(2, 5, 6, 7\) uint8, /raw.*as group.zarr:/raw/a$"):
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


def test_values_are_read_in_boxes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a box touches its own chunks, and no others."""
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
