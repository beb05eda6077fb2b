"""Zarr volumes that are invalid, damaged or out of reach give a one-line error."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from command_line import cut, rewrite
from fsspec.implementations.memory import MemoryFileSystem
from zarr_images import BOX, SIZE, VALUES, change_metadata, write_image

from znni.core.errors import InvalidInput, RunFailed, ZnniError
from znni.volumes.locate import describe_volume, open_volume

pytestmark = pytest.mark.usefixtures("own_folder", "memory_files")


def remove_level() -> None:
    shutil.rmtree("cells.zarr/0")


def group_for_level() -> None:
    remove_level()
    zarr.open_group("cells.zarr").create_group("0")


def several_times() -> None:
    root = zarr.open_group("cells.zarr")
    del root["0"]
    root.create_array("0", shape=(2, 3, *SIZE), dtype="u1")


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
    "codec": (lambda: rewrite("cells.zarr/0/zarr.json", '"zstd"', '"magic"'), "codec:? 'magic'"),
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


@pytest.mark.slow_cases
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
    cut(chunk, share)
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
    """A server that serves files until it goes away, and cannot list them."""

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
