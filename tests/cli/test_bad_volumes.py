"""A volume that is invalid, or not for this network, gives a one-line error and no output."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import INFER, cut, read_main, voxels, write_volume
from command_line import refused_without_trace as refused

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


def several_datasets() -> None:
    with h5py.File("volume.h5", "a") as file:
        file["more/labels"] = np.zeros((3, 4, 5), np.int16)
        file["list"] = np.zeros(3)


def only_two_axes() -> None:
    write_volume(np.zeros((5, 6)))


VOLUMES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "missing": (lambda: Path("volume.h5").unlink(), ["volume.h5: no such file"]),
    "not HDF5": (lambda: Path("volume.h5").write_text("text"), ["cannot be read as HDF5"]),
    "empty file": (lambda: Path("volume.h5").write_text(""), ["cannot be read as HDF5"]),
    "cut short": (lambda: cut("volume.h5", 0.5), ["cannot be read as HDF5", "truncated"]),
    "no dataset": (lambda: h5py.File("volume.h5", "w").close(), ["no dataset", "none at all"]),
    "several": (several_datasets, ["/raw (7, 20, 23) uint8", "as volume.h5:/raw"]),
    "two axes": (only_two_axes, ["no dataset with axes (z, y, x)", "/raw (5, 6) float64"]),
    "five axes": (lambda: write_volume(np.zeros((1,) * 5)), ["no dataset with axes"]),
    "no voxels": (lambda: write_volume(np.zeros((5, 0, 5))), ["(5, 0, 5)", "no voxels"]),
    "complex": (lambda: write_volume(voxels(dtype="complex64")), ["complex64", "integers"]),
    "strings": (lambda: write_volume(np.full((3, 3, 3), "a", "S3")), ["holds |S3"]),
    "compound": (lambda: write_volume(np.zeros((3, 3, 3), "i4,f4")), ["integers or floats"]),
    "text": (
        lambda: write_volume(np.full((3, 3, 3), "a", object), dtype=h5py.string_dtype()),
        ["holds object"],
    ),
    "small": (lambda: write_volume(voxels((7, 4, 23))), ["7x4x23", "field of view 2x6x8", "same"]),
    "two maps": (lambda: write_volume(voxels((2, 7, 20, 23))), ["2 maps", "takes 1"]),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name: str) -> None:
    spoil, said = VOLUMES[name]
    spoil()
    message = refused(*INFER)
    for part in said:
        assert part in message


def test_a_volume_of_an_empty_dataspace() -> None:
    write_volume(h5py.Empty("f4"))
    assert "/raw None float32" in refused(*INFER)
    assert "()" in refused(*INFER, "--dataset", "raw")


@pytest.mark.parametrize(
    ("volume", "dataset", "said"),
    [
        ("volume.h5", "row", "no dataset 'row'; it has /raw (7, 20, 23) uint8"),
        ("volume.h5:/rat", None, "no dataset '/rat'"),
        ("volume.h5:/raw", "other", "give one"),
        ("volume.h5", "/", "no dataset"),
        (
            ".",
            None,
            "to run over each volume in it, give ./*.h5",
        ),
        (
            "empty",
            None,
            "give a file, a folder with one image for each plane, or a Zarr",
        ),
    ],
)
def test_datasets(volume: str, dataset: str | None, said: str) -> None:
    Path("empty").mkdir()
    options = ("--dataset", dataset) if dataset else ()
    message = refused("infer", volume, "--net", "tiny.yaml", "--out", "out.h5", *options)
    assert said in message


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_voxel_that_is_no_number(value: float) -> None:
    values = voxels(dtype="float64")
    values[2, 3, 4] = value
    write_volume(values)
    message = refused(*INFER)
    assert "z=2, y=3, x=4" in message
    assert str(value) in message


def test_a_chunk_that_cannot_be_read() -> None:
    """The first block is written, the last chunk is damaged: the error counts finished blocks."""
    write_volume(voxels((40, 20, 23)), chunks=(4, 20, 23), compression="gzip")
    with h5py.File("volume.h5") as file:
        chunk = file["raw"].id.get_chunk_info(9)
    with Path("volume.h5").open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\0" * chunk.size)
    message = refused(*INFER, "--ram", "512.4MiB", code=4)
    assert "volume.h5:/raw: cannot be read at " in message
    assert "out.h5 was not made; out.h5.partial holds" in message
    blocks = int(re.findall(r"(\d+) finished blocks?", message)[0])
    assert blocks >= 1
    partial = read_main("out.h5.partial")
    assert partial[:, 0].all()
    assert not partial[:, -1].any()
