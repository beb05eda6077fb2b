"""Tests of arrays that are mapped: what they hold, how much memory they take, damaged files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from left_behind import open_below
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.mapped_file import MappedFile
from znni.core.shapes import Box, Vec3
from znni.plans.stored_values import InputChunks
from znni.volumes.formats.tiff.writer import _is_big
from znni.volumes.locate import open_volume
from znni.volumes.mapped_array import MappedArray

VALUES = np.arange(4 * 5 * 6 * 7, dtype=np.int16).reshape(4, 5, 6, 7)
WHOLE = Box(Vec3(0, 0, 0), Vec3(5, 6, 7))


@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize(
    "key",
    [np.s_[:], np.s_[2], np.s_[1:3, ..., 5], np.s_[0, 1, 2, 3], np.s_[:, 3:3]],
)
def test_it_is_indexed_as_an_array(key: object, fortran: bool, tmp_path: Path) -> None:
    file = tmp_path / "values"
    file.write_bytes(b"before" + VALUES.tobytes("F" if fortran else "C"))
    mapped = MappedArray(file, np.int16, 6, VALUES.shape, fortran=fortran)
    np.testing.assert_array_equal(mapped[key], VALUES[key])
    with pytest.raises(ValueError, match="last 1 bytes are missing"):
        MappedArray(file, np.int16, 7, VALUES.shape)


def test_the_file_may_be_replaced_meanwhile(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUES)
    volume = open_volume(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", -VALUES[:, :3])
    (tmp_path / "b.npy").replace(tmp_path / "a.npy")
    np.testing.assert_array_equal(volume.read(WHOLE), VALUES)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", ["volume.npy", "volume.tif"])
def test_a_file_is_open_once(name: str, tmp_path: Path) -> None:
    values = np.ones((2, 3, 4), np.float32)
    if name.endswith(".npy"):
        np.save(tmp_path / name, values)
    else:
        pytest.importorskip("tifffile").imwrite(tmp_path / name, values, photometric="minisblack")
    opened = open_volume(tmp_path / name)
    assert open_below(tmp_path) == [tmp_path / name]
    assert opened.size == (2, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [32, 2000])
def test_pages_are_given_back_a_mebibyte_or_a_plane_at_a_time(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, the threads on other cores stop for a moment."""
    values = np.arange(2 * 20 * rows * 1000, dtype=np.int32).reshape(2, 20, rows, 1000)
    np.save(tmp_path / "v.npy", values)
    volume = open_volume(tmp_path / "v.npy")
    given: list[int] = []
    monkeypatch.setattr(MappedFile, "give_back", lambda _self, planes: given.append(planes.nbytes))
    np.testing.assert_array_equal(volume.read(Box(Vec3(0, 0, 0), volume.size)), values)
    assert sum(given) == values.nbytes
    assert max(given) <= max(2**20, rows * 4000)
    assert len(given) <= 2 * -(-20 // max(1, 2**20 // (rows * 4000)))


UUID = "urn:uuid:00000000-0000-0000-0000-00000000000"  # and a digit
NARROW = """
import resource, sys
import numpy as np
from znni.volumes.mapped_array import MappedArray
mapped = MappedArray(sys.argv[1], np.uint8, 0, (40, 64, 200_000))
mapped[:1, :1, :1]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert not mapped[:, :, 5000:5032].any()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does")
def test_a_narrow_box_of_a_wide_image_takes_little_memory(tmp_path: Path) -> None:
    """The system maps neighbours of each page that is read: 160 MiB of this file."""
    with (tmp_path / "wide").open("wb") as file:
        file.truncate(40 * 64 * 200_000)
    done = subprocess.run(
        [sys.executable, "-c", NARROW, str(tmp_path / "wide")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert int(done.stdout) < 16 << 10  # KiB


def test_a_tiff_that_ends_too_soon_is_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    file = tmp_path / "one.tif"
    tifffile.imwrite(file, np.ones((300, 400), np.uint8))
    file.write_bytes(file.read_bytes()[:-30000])
    with pytest.raises(InvalidInput, match="30000 bytes are missing; give a file that is whole"):
        open_volume(file)


@pytest.mark.parametrize("name", ["a.npy", "turned.npy", "a.tif", "a.h5"])
def test_predicted_times_know_its_rows(name: str, tmp_path: Path) -> None:
    values = np.zeros((4, 5, 6), np.uint8)
    if name.endswith(".npy"):
        np.save(tmp_path / name, np.asfortranarray(values) if name == "turned.npy" else values)
    elif name.endswith(".h5"):
        with pytest.importorskip("h5py").File(tmp_path / name, "w") as file:
            file["a"] = values
    else:
        pytest.importorskip("tifffile").imwrite(tmp_path / name, values, photometric="minisblack")
    row = Vec3(4, 1, 1) if name == "turned.npy" else Vec3(1, 1, 6)
    for _ in range(2):  # the layout of a TIFF is known the second time
        chunks = open_volume(tmp_path / name).chunks
        assert chunks == InputChunks("mapped", None, row, Vec3(4, 5, 6))


def test_pages_of_a_tiff_that_do_not_follow_each_other_are_chunks(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for _ in range(3):  # a description lies between the pages
            file.write(np.zeros((32, 48), np.uint8), metadata=None, tile=(16, 16))
    chunks = open_volume(tmp_path / "a.tif").chunks
    assert chunks == InputChunks("zarr", None, Vec3(1, 16, 16), Vec3(3, 32, 48))


def test_an_empty_file_is_told_as_one_that_was_cut(tmp_path: Path) -> None:
    """The system's own words name no file: "cannot mmap an empty file"."""
    (tmp_path / "values").touch()
    with pytest.raises(ValueError, match=r"^its last 130 bytes are missing$"):
        MappedArray(tmp_path / "values", np.uint8, 10, (4, 5, 6))


def test_a_file_of_a_set_that_was_emptied_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile = pytest.importorskip("tifffile")
    write_set(tmp_path)
    opened = tifffile.TiffFile

    class ThenEmptied(opened):  # type: ignore[misc]
        @property
        def series(self) -> Any:
            found = super().series
            len(found)  # newer tifffiles read the set when its series are counted
            (tmp_path / "b.ome.tif").write_bytes(b"")
            return found

    monkeypatch.setattr(tifffile, "TiffFile", ThenEmptied)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"^b.ome.tif: .* bytes are missing; give a file that"):
        open_volume("a.ome.tif", "1")


def test_a_series_in_another_file_of_a_set(tmp_path: Path) -> None:
    for at, values in enumerate(write_set(tmp_path)):
        volume = open_volume(tmp_path / "a.ome.tif", str(at))
        found = volume.read(Box(Vec3(0, 0, 0), volume.size))
        np.testing.assert_array_equal(found[0], values)


def write_set(folder: Path) -> list[NDArray[np.uint8]]:
    """Write a set of two OME-TIFF files, a and b, with a series each. Return their values."""
    tifffile = pytest.importorskip("tifffile")
    given = {name: np.full((3, 20, 30), at, np.uint8) for at, name in enumerate("ab")}
    images = "".join(
        f'<Image ID="Image:{at}"><Pixels ID="Pixels:{at}" DimensionOrder="XYZCT" Type="uint8" '
        f'SizeX="30" SizeY="20" SizeZ="3" SizeC="1" SizeT="1"><Channel ID="Channel:{at}:0"/>'
        + "".join(
            f'<TiffData IFD="{z}" FirstZ="{z}" FirstC="0" FirstT="0" PlaneCount="1">'
            f'<UUID FileName="{name}.ome.tif">{UUID}{at}</UUID>'
            "</TiffData>"
            for z in range(3)
        )
        + "</Pixels></Image>"
        for at, name in enumerate("ab")
    )
    for at, name in enumerate("ab"):
        xml = (
            '<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/'
            f'Schemas/OME/2016-06" UUID="{UUID}{at}">'
            f"{images}</OME>"
        )
        tifffile.imwrite(
            folder / f"{name}.ome.tif", given[name], photometric="minisblack",
            description=xml, metadata=None, contiguous=True,
        )  # fmt: skip
    return list(given.values())


def test_tiffs_of_many_small_planes_have_large_offsets() -> None:
    """Tiles at the edges are whole ones: 4 GiB of tiles for 1.9 GB of values."""

    class Wanted:
        dtype = "float32"
        shape = (1, 18700, 257, 100)

    assert _is_big(Wanted, [])  # type: ignore[arg-type]
    Wanted.shape = (1, 17000, 257, 100)
    assert not _is_big(Wanted, [])  # type: ignore[arg-type]
    assert _is_big(Wanted, [(1, 17000, 129, 50)])  # type: ignore[arg-type]
