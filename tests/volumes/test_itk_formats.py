"""NRRD and MetaImage files as ITK has them, and files that ITK would read otherwise."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import os
import re
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import cut, succeeds
from numpy.typing import NDArray

import znni
from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Box, Vec3
from znni.core.volume import Affine, Grid
from znni.inference.exporting import copy_labels
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import describe_volume, not_compressed, open_volume, read_ledger
from znni.volumes.orientation import in_words, nearest_axes
from znni.volumes.stored import decompressed

VALUES = np.arange(5 * 6 * 7, dtype="<i2").reshape(5, 6, 7)
BOX = Box(Vec3(1, 2, 0), Vec3(4, 3, 7))
STRAIGHT = "(2,0,0) (0,3,0) (0,0,5)"
# The steps and the origin above in RAS.
AFFINE = (-2.0, 0, 0, -1.0, 0, -3.0, 0, -2.0, 0, 0, 5.0, 3.0)

pytestmark = pytest.mark.usefixtures("own_folder")


def nrrd(values: NDArray[Any] = VALUES, content: bytes | None = None, **fields: str | None) -> Path:
    """Write ``v.nrrd``, with fields by their names without spaces."""
    usual = {
        "type": "short",
        "dimension": str(values.ndim),
        "space": "left-posterior-superior",
        "sizes": " ".join(map(str, values.shape[::-1])),
        "space directions": STRAIGHT,
        "kinds": "domain domain domain",
        "endian": "little",
        "encoding": "raw",
        "space origin": "(1,2,3)",
    }
    fields = usual | {name.replace("_", " "): value for name, value in fields.items()}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    head = "\n".join(["NRRD0004", "# a comment", *lines, "", ""])
    path = Path("v.nrrd")
    path.write_bytes(head.encode() + (values.tobytes() if content is None else content))
    return path


def mha(values: NDArray[Any] = VALUES, content: bytes | None = None, **fields: str) -> Path:
    """Write ``v.mha``."""
    usual = {
        "ObjectType": "Image",
        "NDims": str(values.ndim),
        "BinaryData": "True",
        "BinaryDataByteOrderMSB": "False",
        "Offset": "1 2 3",
        "ElementSpacing": "2 3 5",
        "DimSize": " ".join(map(str, values.shape[::-1])),
        "ElementType": "MET_SHORT",
        "ElementDataFile": "LOCAL",
    }
    last = fields.pop("ElementDataFile", "LOCAL")
    fields = {name: value for name, value in (usual | fields).items() if value}
    fields["ElementDataFile"] = fields.pop("ElementDataFile") and last
    head = "".join(f"{name} = {value}\n" for name, value in fields.items())
    path = Path("v.mha")
    path.write_bytes(head.encode() + (values.tobytes() if content is None else content))
    return path


def check(place: Path | str, expected: NDArray[Any], grid: Grid | None = None) -> None:
    volume = open_volume(place)
    np.testing.assert_array_equal(volume.read(BOX), expected[:, *BOX.slices])
    np.testing.assert_array_equal(volume.read(Box(Vec3(0, 0, 0), volume.size)), expected)
    np.testing.assert_array_equal(volume.read(BOX), expected[:, *BOX.slices])
    assert volume.dtype == expected.dtype
    if grid:
        assert volume.grid == grid


IN_SPACE = Grid((5.0, 3.0, 2.0), units=("millimeter",) * 3, affine=Affine(AFFINE, 1))


def test_values_and_place_of_nrrd() -> None:
    check(nrrd(), VALUES[np.newaxis], IN_SPACE)
    big = VALUES.astype(">i2")
    check(nrrd(big, endian="big"), big[np.newaxis], IN_SPACE)
    check(nrrd(content=gzip.compress(VALUES.tobytes()), encoding="gzip"), VALUES[np.newaxis])
    parts = VALUES.tobytes()[:100], VALUES.tobytes()[100:]
    content = b"".join(map(gzip.compress, parts))  # as programs that use several threads
    check(nrrd(content=content, encoding="gz"), VALUES[np.newaxis])
    check(nrrd(content=b"not values" + VALUES.tobytes(), byte_skip="10"), VALUES[np.newaxis])
    check(nrrd(content=b"not values" + VALUES.tobytes(), byte_skip="-1"), VALUES[np.newaxis])
    check(nrrd(content=b"a\nb\n" + VALUES.tobytes(), line_skip="2"), VALUES[np.newaxis])
    said = describe_volume("v.nrrd")
    assert "(1, 5, 6, 7) int16, voxels of (5 millimeter, 3 millimeter, 2 mill" in said
    assert "orientation LPS of its axes x, y and z, first voxel at (-1, -2, 3) in" in said


def test_values_and_place_of_metaimage() -> None:
    check(mha(), VALUES[np.newaxis], IN_SPACE)
    big = VALUES.astype(">i2")
    check(mha(big, BinaryDataByteOrderMSB="True"), big[np.newaxis], IN_SPACE)
    packed = zlib.compress(VALUES.tobytes())
    check(mha(content=packed, CompressedData="True"), VALUES[np.newaxis], IN_SPACE)
    check(mha(content=b"12345" + VALUES.tobytes(), HeaderSize="-1"), VALUES[np.newaxis])
    assert "orientation LPS of its axes" in describe_volume("v.mha")


def test_values_in_a_file_of_their_own() -> None:
    VALUES.tofile("v.raw")
    nrrd(content=b"", data_file="v.raw").rename("v.nhdr")
    check("v.nhdr", VALUES[np.newaxis], IN_SPACE)
    mha(content=b"", ElementDataFile="v.raw").rename("v.mhd")
    check("v.mhd", VALUES[np.newaxis], IN_SPACE)
    Path("v.raw").unlink()
    for name in ("v.nhdr", "v.mhd"):
        with pytest.raises(InvalidInput, match=r"it names the file v.raw for its values, and th"):
            open_volume(name)
        with pytest.raises(InvalidInput, match="as one file; give a name that ends in"):
            znni.export(VALUES, f"new{name[1:]}")


@pytest.mark.parametrize(
    ("space", "signs"),
    [
        ("right-anterior-superior", (1, 1, 1)),
        ("RAS", (1, 1, 1)),
        ("left-anterior-superior", (-1, 1, 1)),
        ("lps", (-1, -1, 1)),
    ],
)
def test_spaces_of_nrrd(space: str, signs: tuple[int, int, int]) -> None:
    steps = np.array([[0, 2, 0], [3, 0, 0], [0, 0, 5]])
    volume = open_volume(nrrd(space=space, space_directions="(0,2,0) (3,0,0) (0,0,5)"))
    assert volume.grid.affine is not None
    expected = np.column_stack([*steps, (1, 2, 3)]) * np.array(signs)[:, np.newaxis]
    np.testing.assert_array_equal(np.reshape(volume.grid.affine.rows, (3, 4)), expected)


def test_a_turned_metaimage() -> None:
    """A row of the matrix is the direction of an axis."""
    volume = open_volume(mha(TransformMatrix="0 1 0 -1 0 0 0 0 1"))
    assert volume.grid.scale == (5, 3, 2)
    assert volume.grid.affine == Affine((0, 3, 0, -1, -2, 0, 0, -2, 0, 0, 5, 3), 1)
    flipped = open_volume(mha(ElementSpacing="2 -3 5"))
    assert flipped.grid.scale == (5, 3, 2)
    assert flipped.grid.affine == Affine((-2, 0, 0, -1, 0, 3, 0, -2, 0, 0, 5, 3), 1)


def test_nrrd_without_a_space() -> None:
    bare = {"space": None, "space_directions": None, "space_origin": None}
    check(nrrd(**bare), VALUES[np.newaxis], Grid())
    units = '"nm" "um" "mm"'
    check(
        nrrd(**bare, spacings="2 3 5", units=units),
        VALUES[np.newaxis],
        Grid((5, 3, 2), units=("millimeter", "micrometer", "nanometer")),
    )
    assert open_volume(mha(ElementSpacing="")).grid == Grid()
    micrometers = open_volume(nrrd(space_units='"um" "um" "um"')).grid
    assert micrometers.units == ("micrometer",) * 3
    assert open_volume(mha(DistanceUnits="um")).grid.units == ("micrometer",) * 3


def test_several_maps_and_points_in_time() -> None:
    four = np.arange(3 * 5 * 6 * 7, dtype="<i2").reshape(3, 5, 6, 7)
    last = {"space_directions": f"{STRAIGHT} none"}
    check(nrrd(four, kinds="domain domain domain list", **last), four, IN_SPACE)
    inner = np.moveaxis(four, 0, -1).copy()
    first = {"space_directions": f"none {STRAIGHT}"}
    check(nrrd(inner, kinds="vector domain domain domain", **first), four, IN_SPACE)
    check(nrrd(inner, kinds=None, **first), four)
    check(mha(inner, NDims="3", DimSize="7 6 5", ElementNumberOfChannels="3"), four, IN_SPACE)
    packed = gzip.compress(inner.tobytes())
    check(
        nrrd(inner, packed, kinds="RGB-color domain domain domain", encoding="gzip", **first), four
    )
    check(mha(four, ElementSpacing="2 3 5 1", Offset="1 2 3 0"), four, IN_SPACE)
    np.testing.assert_array_equal(open_volume("v.mha", time=1).read(BOX), four[1:2, *BOX.slices])
    times = nrrd(four, kinds="domain domain domain time", **last)
    assert "at each of 3 points in time" in describe_volume("v.nrrd")
    with pytest.raises(InvalidInput, match="3 points in time along t; a run takes one"):
        open_volume(times)
    np.testing.assert_array_equal(open_volume(times, time=2).read(BOX), four[2:, *BOX.slices])
    pairs = np.stack([four, four + 1], axis=-1)
    mha(
        pairs,
        NDims="4",
        DimSize="7 6 5 3",
        ElementNumberOfChannels="2",
        ElementSpacing="2 3 5 1",
        Offset="1 2 3 0",
    )
    assert "at each of 3 points in time" in describe_volume("v.mha")


REFUSED_NRRD: dict[str, tuple[dict[str, str | None], str]] = {
    "space": ({"space": "scanner-xyz"}, "its space is scanner-xyz, whose axes may run anywhere"),
    "no space": ({"space": None}, "its space is not named"),
    "flat": ({"space_directions": "(2,0,0) (2,0,0) (0,0,5)"}, "which span no space"),
    "two": ({"space_directions": "(2,0,0) (0,3,0)"}, "space directions of other axes"),
    "mins": (
        {"space_directions": None, "space": None, "space_origin": None, "axis_mins": "1 2 3"},
        "it has axis mins, which programs understand differently",
    ),
    "kinds": (
        {"kinds": "domain domain list"},
        "it has kinds domain domain list, and space directions of other axes",
    ),
    "type": ({"type": "block"}, "its type is 'block'; znni reads"),
    "encoding": ({"encoding": "bzip2"}, "its encoding is 'bzip2'; znni reads raw, gzip, gz"),
    "endian": ({"endian": None}, "it has no field 'endian'"),
    "several files": ({"data_file": "LIST"}, "it names the file LIST for its values"),
    "dimension": ({"sizes": "7 6"}, "2 axes of kinds domain domain domain"),
}


@pytest.mark.parametrize("name", REFUSED_NRRD)
def test_nrrd_that_is_not_read(name: str) -> None:
    fields, said = REFUSED_NRRD[name]
    content = bz2.compress(VALUES.tobytes()) if name == "encoding" else None
    with pytest.raises(InvalidInput, match=f"^v.nrrd: cannot be read as NRRD: .*({said})"):
        open_volume(nrrd(content=content, **fields))


REFUSED_MHA: dict[str, tuple[dict[str, str], str]] = {
    "long": ({"TransformMatrix": "2 0 0 0 2 0 0 0 2"}, "have the lengths .*; 1 is expected"),
    "flat": ({"TransformMatrix": "1 0 0 1 0 0 0 0 1"}, "which span no space"),
    "matrix": ({"TransformMatrix": "1 0 0 1"}, "9 numbers are expected"),
    "slope": ({"ElementToIntensityFunctionSlope": "2"}, "a slope or an offset of its values"),
    "text": ({"BinaryData": "False"}, "its values are text"),
    "files": ({"ElementDataFile": "LIST"}, "its values are in several files"),
    "type": ({"ElementType": "MET_STRING"}, "its ElementType is MET_STRING"),
    "sizes": ({"DimSize": "7"}, "two to four extents are expected"),
    "kind": ({"ObjectType": "Scene"}, "its ObjectType is Scene"),
    "none": ({"ElementType": ""}, "it has no field 'ElementType'"),
}


@pytest.mark.parametrize("name", REFUSED_MHA)
def test_metaimages_that_are_not_read(name: str) -> None:
    fields, said = REFUSED_MHA[name]
    with pytest.raises(InvalidInput, match=f"^v.mha: cannot be read as MetaImage: .*({said})"):
        open_volume(mha(**fields))


@pytest.mark.parametrize("unit", ["micrometer", "millimeter", None])
def test_a_metaimage_of_voxels_whose_orientation_is_not_known(unit: str | None) -> None:
    grid = Grid((5.0, 3.0, 2.0), (7.0, -8.0, 9.0), (unit,) * 3)
    for given in (grid, Grid()):
        volume = ArrayVolume(VALUES, "labels", given)
        copy_labels(volume, "w.mha")
        assert open_volume("w.mha").grid == given
    copy_labels(ArrayVolume(VALUES, "labels", grid), "w.mha")
    assert (b"DistanceUnits = ?" in Path("w.mha").read_bytes()) == (unit is None)
    content = re.sub(rb"Offset = \S+", b"Offset = 8", Path("w.mha").read_bytes())
    Path("w.mha").write_bytes(content)  # another program moved it
    moved = open_volume("w.mha").grid
    assert moved.affine is not None
    assert moved.affine.rows[3] == -8
    assert open_volume(mha(DistanceUnits="?")).grid.units == (None,) * 3


def test_ledgers_that_cannot_be_read() -> None:
    for ending, mark in ((".nrrd", b"NRRD"), (".mha", b"DimSize"), (".nii", b"n+1\0")):
        place = f"w{ending}"
        znni.export(VALUES, place)
        with pytest.raises(InvalidInput, match=f"^{place}: has no ledger of its blocks"):
            read_ledger(place)
        content = Path(place).read_bytes()
        assert mark in content
        Path(place).write_bytes(content.replace(mark, b"\xff" * len(mark)))
        with pytest.raises(InvalidInput, match=f"^{place}: its ledger cannot be read: .*; give a"):
            read_ledger(place)


def test_two_planes_of_compressed_values_are_declared() -> None:
    plane = 2 * 6 * 7 * 2
    packed = nrrd(content=gzip.compress(VALUES.tobytes()), encoding="gzip")
    assert open_volume(packed).chunk_bytes == plane
    assert open_volume(nrrd()).chunk_bytes == 0
    packed = mha(content=zlib.compress(VALUES.tobytes()), CompressedData="True")
    assert open_volume(packed).chunk_bytes == plane
    large = np.zeros((4, 512, 512), np.float32)
    volume = open_volume(
        mha(large, zlib.compress(large), CompressedData="True", ElementType="MET_FLOAT")
    )
    tracemalloc.start()
    volume.read(Box(Vec3(1, 5, 5), Vec3(3, 6, 6)))
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken <= volume.chunk_bytes + 2**16
    assert taken > volume.chunk_bytes // 2


def test_damaged_files() -> None:
    for path in (nrrd(), mha()):
        with pytest.raises(InvalidInput, match="holds one image, and no dataset 'raw'"):
            open_volume(path, "raw")
        cut(str(path), 0.8)
        with pytest.raises(InvalidInput, match=r"its last \d+ bytes are missing; give a whole"):
            open_volume(path)
        cut(str(path), 0)
        for act in (open_volume, describe_volume, lambda path: not_compressed(path, Path("copy"))):
            with pytest.raises(InvalidInput, match=r"it does not begin with NRRD|it has no header"):
                act(str(path))
    packed = zlib.compress(np.random.default_rng(0).bytes(VALUES.nbytes))
    for content in (packed[: len(packed) // 2], packed[:99] + b"\xff" * 200):
        volume = open_volume(mha(content=content, CompressedData="True"))
        for _ in range(2):
            with pytest.raises(
                RunFailed, match=r"cannot be read at 1:4,2:3,0:7: .*; check or copy"
            ):
                volume.read(BOX)
        for copy in (Path("copy"), None):
            with pytest.raises(InvalidInput, match=r"v.mha: cannot be decompressed: "):
                not_compressed(Path("v.mha"), copy)
        assert not Path("copy.mha").exists()


def test_a_full_disk_is_not_the_fault_of_a_file() -> None:
    def full(_copy: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said = r"^\.: No space left on device, while v.mha is decompressed; make room, and run the same"
    with pytest.raises(RunFailed, match=said):
        decompressed("v.mha", Path("copy"), ".mha", full)
    assert not Path("copy.mha").exists()


def test_a_copy_that_is_not_compressed() -> None:
    assert not_compressed(nrrd(), Path("copy")) == Path("v.nrrd")
    assert not_compressed(mha(), Path("copy")) == Path("v.mha")
    for path in (
        nrrd(content=gzip.compress(VALUES.tobytes()), encoding="gzip"),
        mha(content=zlib.compress(VALUES.tobytes()), CompressedData="True"),
    ):
        copy = not_compressed(path, Path("copy"))
        assert copy == Path(f"copy{path.suffix}")
        check(copy, VALUES[np.newaxis], open_volume(path).grid)
        assert copy.stat().st_size > VALUES.nbytes


@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("compression", [None, "gzip", "none"])
def test_what_is_written_is_read(ending: str, dtype: str, compression: Any) -> None:
    nrrd(VALUES % 100, space_directions="(0.6,0.8,0) (-1.6,1.2,0) (0,0,2.5)")
    znni.export("v.nrrd", f"w{ending}", dtype=dtype, compression=compression)
    read, written = open_volume("v.nrrd"), open_volume(f"w{ending}")
    whole = Box(Vec3(0, 0, 0), read.size)
    np.testing.assert_array_equal(written.read(whole), read.read(whole).astype(dtype))
    assert written.dtype == dtype
    assert written.grid.units == read.grid.units
    assert written.grid.affine is not None
    assert read.grid.affine is not None
    np.testing.assert_allclose(written.grid.scale, read.grid.scale, rtol=1e-15)
    np.testing.assert_allclose(written.grid.affine.rows, read.grid.affine.rows, rtol=1e-15)
    assert written.attribute("exported_from") == "v.nrrd"
    packed = compression == "gzip" or (compression is None and "int" in dtype)
    assert (not_compressed(Path(f"w{ending}"), Path("copy")) != Path(f"w{ending}")) == packed
    assert "exported_from" in succeeds("info", f"w{ending}")


@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
def test_what_cannot_be_written(ending: str) -> None:
    for options, said in (
        ({"dtype": "float16"}, "has no float16; give dtype='float32'"),
        ({"compression": "zstd"}, "takes no compression='zstd'"),
        ({"sharded": True}, "takes no sharded"),
    ):
        with pytest.raises(InvalidInput, match=said):
            znni.export(VALUES, f"w{ending}", **options)  # type: ignore[arg-type]


def test_axes_of_space_are_chosen_as_in_nibabel() -> None:
    orientations = pytest.importorskip("nibabel.orientations")
    generator = np.random.default_rng(0)
    for _ in range(200):
        rows = generator.standard_normal((3, 4))
        affine = Affine(tuple(rows.ravel().tolist()), 1)
        expected = orientations.io_orientation(np.vstack([rows, (0, 0, 0, 1)]))
        assert [list(each) for each in nearest_axes(affine)] == expected.astype(int).tolist()
        letters = "".join(orientations.aff2axcodes(np.vstack([rows, (0, 0, 0, 1)])))
        assert in_words(affine).startswith(f"orientation {letters} of its axes")


SEEN_BY_ITK = """
import json, sys, SimpleITK
seen = {}
for name in sys.argv[1:]:
    image = SimpleITK.ReadImage(name)
    seen[name] = [
        image.GetSpacing(), image.GetOrigin(), image.GetDirection(),
        SimpleITK.GetArrayFromImage(image).ravel().tolist(),
    ]
print(json.dumps(seen))
"""


def test_itk_reads_what_is_written() -> None:
    pytest.importorskip("SimpleITK", reason="it is not installed (znni[test])")
    nrrd(VALUES % 100, space_directions="(0.6,0.8,0) (-1.6,1.2,0) (0,0,2.5)")
    names = ["v.nrrd"]
    for ending in (".nrrd", ".mha"):
        for compression in ("gzip", "none"):
            names.append(f"{compression}{ending}")
            znni.export("v.nrrd", names[-1], compression=compression)  # type: ignore[arg-type]
    run = subprocess.run(
        [sys.executable, "-c", SEEN_BY_ITK, *names], check=True, capture_output=True, text=True
    )
    seen = json.loads(run.stdout)
    for name in names[1:]:
        for found, expected in zip(seen[name], seen["v.nrrd"], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(seen["v.nrrd"][3], (VALUES % 100).ravel())
