"""Files with the bytes of an earlier one beside the values are opened without their library."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid
from znni.volumes import layouts
from znni.volumes.array import ArrayVolume
from znni.volumes.hdf5 import format as hdf5_format
from znni.volumes.locate import open_volume
from znni.volumes.stored import StoredVolume

SIZE = Vec3(5, 6, 7)
IMAGEJ = {"spacing": 0.5, "unit": "um", "axes": "ZYX"}


@pytest.fixture(autouse=True)
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files that tifffile opens."""
    found: list[str] = []
    whole = tifffile.TiffFile

    def noted(path: Any, *args: Any, **options: Any) -> tifffile.TiffFile:
        found.append(Path(path).name)
        return whole(path, *args, **options)

    monkeypatch.setattr(tifffile, "TiffFile", noted)
    return found


def values(seed: int, size: Vec3 = SIZE) -> NDArray[np.uint16]:
    return np.random.default_rng(seed).integers(0, 2**16, size, np.uint16)


def read(volume: ArrayVolume) -> NDArray[Any]:
    return np.asarray(volume.read(Box(Vec3(0, 0, 0), volume.size)))[0]


def plain(path: Path, stored: NDArray[Any]) -> None:
    tifffile.imwrite(path, stored)


def imagej(path: Path, stored: NDArray[Any]) -> None:
    tifffile.imwrite(path, stored, imagej=True, metadata=IMAGEJ, resolution=(4, 2))


def one_page(path: Path, stored: NDArray[Any]) -> None:
    tifffile.imwrite(path, stored[0], metadata=None)


@pytest.mark.parametrize("write", [plain, imagej, one_page])
def test_a_file_with_the_layout_of_another_is_the_same_volume_without_tifffile(
    write: Callable[[Path, NDArray[Any]], None], tmp_path: Path, parsed: list[str]
) -> None:
    paths = [tmp_path / name for name in ("a.tif", "b.tif")]
    for seed, path in enumerate(paths):
        write(path, values(seed))
    first, second = (open_volume(path) for path in paths)
    assert parsed == ["a.tif"]
    assert (read(second) == values(1)[: second.size.z]).all()
    assert (second.size, second.grid, second.maps) == (first.size, first.grid, first.maps)
    assert (second.assumed, second.chunks) == (first.assumed, first.chunks)
    assert second.chunk_bytes == first.chunk_bytes == 0
    assert second.name == str(paths[1])
    assert isinstance(second, StoredVolume)
    assert not second.attributes()
    assert not second.coarser()
    numbered = open_volume(f"{paths[1]}:0")
    assert parsed == ["a.tif", "b.tif"]  # it was asked for in another way
    assert (read(numbered) == read(second)).all()
    paths[0].write_bytes(paths[1].read_bytes())
    paths[1].unlink()
    assert (read(open_volume(paths[0])) == read(second)).all()
    with pytest.raises(InvalidInput, match="no such file"):
        open_volume(paths[1])


def test_a_file_that_differs_beside_its_values_is_opened_by_tifffile(
    tmp_path: Path, parsed: list[str]
) -> None:
    for name, unit in (("a.tif", "um"), ("b.tif", "nm")):
        metadata = IMAGEJ | {"unit": unit}
        tifffile.imwrite(tmp_path / name, values(0), imagej=True, metadata=metadata)
    first, second = (open_volume(tmp_path / name) for name in ("a.tif", "b.tif"))
    assert parsed == ["a.tif", "b.tif"]
    assert first.grid.units[0] == "micrometer"
    assert second.grid.units[0] == "nanometer"
    content = (tmp_path / "b.tif").read_bytes()
    tifffile.imwrite(tmp_path / "c.tif", values(0, Vec3(5, 7, 6)), imagej=True, metadata=metadata)
    assert (tmp_path / "c.tif").stat().st_size == len(content)
    assert open_volume(tmp_path / "c.tif").size == Vec3(5, 7, 6)
    (tmp_path / "d.tif").write_bytes(content[: len(content) // 2])
    parsed.clear()
    with pytest.raises(InvalidInput, match="cannot be read as TIFF"):
        open_volume(tmp_path / "d.tif")
    assert parsed == ["d.tif"]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zlib"},
        {"ome": True, "metadata": {"axes": "ZYX"}},
        {"description": "x" * layouts.MOST_BYTES, "metadata": None, "contiguous": True},
    ],
)
def test_other_files_have_no_known_layout(
    options: dict[str, Any], tmp_path: Path, parsed: list[str]
) -> None:
    for name in ("a.tif", "b.tif"):
        tifffile.imwrite(tmp_path / name, values(0), **options)
        open_volume(tmp_path / name)
    assert parsed == ["a.tif", "b.tif"]


def test_few_layouts_are_kept(tmp_path: Path) -> None:
    for extent in range(1, layouts.MOST_LAYOUTS + 4):
        plain(tmp_path / "a.tif", values(0, Vec3(2, 3, extent)))
        open_volume(tmp_path / "a.tif")
    assert len(layouts._known) == layouts.MOST_LAYOUTS


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files in which HDF5 looks for a volume."""
    found: list[str] = []
    grid = hdf5_format._grid

    def noted(dataset: h5py.Dataset) -> Grid:
        found.append(Path(dataset.file.filename).name)
        return grid(dataset)

    monkeypatch.setattr(hdf5_format, "_grid", noted)
    return found


def test_an_hdf5_file_with_the_layout_of_another_is_the_same_volume(
    tmp_path: Path, made: list[str]
) -> None:
    for seed, name in enumerate(("a.h5", "b.h5")):
        with h5py.File(tmp_path / name, "w") as file:
            file["group/volume"] = values(seed)
            file["group"].attrs["element_size_um"] = (2.0, 0.5, 0.5)
            file["note"] = "text"
    first, second = (open_volume(tmp_path / name) for name in ("a.h5", "b.h5"))
    assert made == ["a.h5"]
    assert (read(second) == values(1)).all()
    assert (read(first) == values(0)).all()
    assert second.grid == first.grid == Grid((2.0, 0.5, 0.5), units=("micrometer",) * 3)
    assert second.name == f"{tmp_path / 'b.h5'}:/group/volume"
    assert (second.chunks, second.chunk_bytes) == (first.chunks, first.chunk_bytes)
    assert (read(open_volume(tmp_path / "b.h5", "group/volume")) == values(1)).all()
    assert made == ["a.h5", "b.h5"]  # it was asked for in another way
    del second  # HDF5 writes no file that is read
    with h5py.File(tmp_path / "b.h5", "r+") as file:
        file["group"].attrs["element_size_um"] = (3.0, 0.5, 0.5)
    assert open_volume(tmp_path / "b.h5").grid.scale == (3.0, 0.5, 0.5)
    with pytest.raises(InvalidInput, match="has no dataset with axes"):
        open_volume(tmp_path / "b.h5", time=0)


@pytest.fixture
def alike(tmp_path: Path) -> list[Path]:
    """Return two HDF5 files with the same layout."""
    paths = [tmp_path / name for name in ("a.h5", "b.h5")]
    for seed, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file["volume"] = values(seed)
    return paths


def test_an_hdf5_file_that_a_program_writes_is_refused(alike: list[Path]) -> None:
    open_volume(alike[0])
    with alike[1].open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as HDF5 does
        with pytest.raises(InvalidInput, match="unable to lock file"):
            open_volume(alike[1])
    assert (read(open_volume(alike[1])) == values(1)).all()


WRITES = "import sys, h5py; h5py.File(sys.argv[1], 'r+')"


def test_no_program_writes_an_hdf5_file_while_its_volume_is_read(
    alike: list[Path], made: list[str]
) -> None:
    """Neither the file that HDF5 has opened, nor the one whose layout is known."""
    volumes = [open_volume(path) for path in alike]
    assert made == ["a.h5"]
    for path in alike:
        writing = [sys.executable, "-c", WRITES, path]
        refused = subprocess.run(writing, check=False, capture_output=True)
        assert b"unable to lock file" in refused.stderr
    volumes.clear()
    for path in alike:
        subprocess.run([sys.executable, "-c", WRITES, path], check=True)


def test_a_file_is_locked_exactly_if_hdf5_locks_it(alike: list[Path]) -> None:
    """HDF5 reads the variable when it is loaded."""
    for value, locks in (("FALSE", False), ("0", False), ("TRUE", True), ("BEST_EFFORT", True)):
        told = {**os.environ, "HDF5_USE_FILE_LOCKING": value}
        done = subprocess.run(
            [sys.executable, "-c", OPENS, *alike], env=told, capture_output=True, check=True
        )
        assert done.stdout.split() == [b"refused" if locks else b"read"] * 2 + [b"1"]


OPENS = """
import fcntl, sys
from znni.core.errors import InvalidInput
from znni.volumes import layouts
from znni.volumes.locate import open_volume

def state(path):
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            open_volume(path)
        except InvalidInput as error:
            assert "unable to lock file" in str(error)
            return "refused"
        return "read"

print(state(sys.argv[1]))
open_volume(sys.argv[1])
print(state(sys.argv[2]))
print(len(layouts._known))
"""


@pytest.mark.parametrize("options", [{"chunks": True}, {"compression": "gzip"}])
def test_other_hdf5_files_have_no_known_layout(
    options: dict[str, Any], tmp_path: Path, made: list[str]
) -> None:
    for seed, name in enumerate(("a.h5", "b.h5")):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("volume", data=values(seed), **options)
        assert (read(open_volume(tmp_path / name)) == values(seed)).all()
    assert made == ["a.h5", "b.h5"]


def test_a_dataset_behind_a_link_to_a_file_has_no_known_layout(tmp_path: Path) -> None:
    for seed, name in enumerate(("a.h5", "b.h5")):
        with h5py.File(tmp_path / name, "w") as file:
            file["volume"] = values(seed)
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["other"] = values(2, Vec3(5, 6, 8))
        file["linked"] = h5py.ExternalLink("a.h5", "/volume")
        file["volume"] = h5py.ExternalLink("a.h5", "/volume")
    for name in ("linked", "volume") * 2:
        assert (read(open_volume(tmp_path / "links.h5", name)) == values(0)).all()
    assert not layouts._known
    with pytest.raises(InvalidInput, match="has no dataset"):
        open_volume(tmp_path / "b.h5", "linked")


def test_a_layout_is_that_of_one_format(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["volume"] = values(0)
    plain(tmp_path / "b.tif", values(0))
    for name, other in (("a.h5", "a.tif"), ("b.tif", "b.h5")):
        open_volume(tmp_path / name)
        (tmp_path / other).write_bytes((tmp_path / name).read_bytes())
        with pytest.raises(InvalidInput, match="cannot be read as"):
            open_volume(tmp_path / other)
