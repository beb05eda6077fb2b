"""Folders of slices: a TIFF or PNG for each plane."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from command_line import read_main, refused, succeeds, voxels
from hypothesis import given
from hypothesis import strategies as st
from tiny_network import close, expected

from znni.core.errors import InvalidInput, Unreadable
from znni.core.shapes import Box, Vec3
from znni.volumes.formats.slices.files import natural
from znni.volumes.formats.slices.plane import Plane
from znni.volumes.locate import describe_volume, open_volume, stem

PART = Box(Vec3(1, 2, 3), Vec3(6, 17, 20))
RUN = ("--net", "tiny.yaml", "--out", "slices.h5")

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")


def write(folder: str = "slices", values: Any = None, **options: Any) -> None:
    """Write the planes of a volume as slice1.tif and so on."""
    Path(folder).mkdir()
    for number, plane in enumerate(voxels((11, 20, 23)) if values is None else values, start=1):
        tifffile.imwrite(f"{folder}/slice{number}.tif", plane, **options)


def write_png(folder: str, values: Any) -> None:
    encode = pytest.importorskip("imagecodecs").png_encode
    Path(folder).mkdir()
    for number, plane in enumerate(values, start=1):
        Path(folder, f"slice{number}.png").write_bytes(encode(plane))


@given(st.lists(st.integers(0, 10**6), min_size=1, unique=True))
def test_numbers_in_names_count_by_their_values(numbers: list[int]) -> None:
    names = [f"a{number}_b.tif" for number in numbers]
    assert sorted(names, key=natural) == [f"a{number}_b.tif" for number in sorted(numbers)]


def test_names_of_any_form_have_an_order() -> None:
    names = ["b.tif", "10.tif", "2.tif", "a2b10.tif", "a2b9.tif", "A1.tif", "02.tif"]
    wanted = ["02.tif", "2.tif", "10.tif", "A1.tif", "a2b9.tif", "a2b10.tif", "b.tif"]
    assert sorted(names, key=natural) == wanted


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byteorder": ">"},
        {"compression": "zlib"},
        {"compression": "zlib", "predictor": True, "tile": (16, 16)},
        {"rowsperstrip": 3},
        {"imagej": True},
        {"ome": True, "metadata": {"axes": "YX"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("small", [True, False])
def test_a_folder_of_slices_is_a_volume(
    options: dict[str, Any], dtype: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.volumes.formats.slices.plane.LEAST_ROOM", 2**20 * small)
    values = voxels((11, 20, 23), dtype)
    write(values=values, **options)
    volume = open_volume("slices/")
    assert (volume.size, volume.features, volume.dtype) == (Vec3(11, 20, 23), 1, dtype)
    np.testing.assert_array_equal(volume.read(PART)[0], values[PART.slices])


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_slices_in_png(dtype: str) -> None:
    values = voxels((4, 20, 23), dtype)
    write_png("grey", values)
    np.testing.assert_array_equal(
        open_volume("grey").read(Box(Vec3(0, 0, 0), values.shape)), [values]
    )
    colours = np.stack([values, values // 2, values // 3], axis=-1)
    write_png("colours", colours)
    volume = open_volume("colours", channel=2)
    np.testing.assert_array_equal(
        volume.read(Box(Vec3(1, 2, 3), Vec3(3, 9, 9)))[0], (values // 3)[1:3, 2:9, 3:9]
    )


@pytest.mark.parametrize(("kind", "colours"), [(0, 1), (2, 3)])
def test_a_transparent_colour_of_a_png_changes_nothing(kind: int, colours: int) -> None:
    """Decoding adds a map of transparency behind the colours."""
    values = voxels((20, 23, colours))
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 23, 20, 8, kind, 0, 0, 0)
    parts = {
        b"IHDR": header,
        b"tRNS": bytes(2 * colours),
        b"IDAT": zlib.compress(rows),
        b"IEND": b"",
    }
    Path("slices").mkdir()
    Path("slices/1.png").write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
            for name, content in parts.items()
        )
    )
    volume = open_volume("slices")
    assert volume.features == colours
    found = volume.read(Box(Vec3(0, 2, 3), Vec3(1, 9, 9)))
    np.testing.assert_array_equal(found[:, 0], np.moveaxis(values, -1, 0)[:, 2:9, 3:9])
    assert volume.chunk_bytes == (2 * colours + 1) * 20 * 23


def test_colours_are_maps() -> None:
    values = np.random.default_rng(0).integers(0, 255, (4, 9, 8, 3), np.uint8)
    write(values=values, photometric="rgb")
    write("apart", np.moveaxis(values, -1, 1), photometric="rgb", planarconfig="separate")
    for folder in ("slices", "apart"):
        found = open_volume(folder).read(Box(Vec3(1, 2, 3), Vec3(3, 9, 8)))
        np.testing.assert_array_equal(found, np.moveaxis(values[1:3, 2:9, 3:8], -1, 0))


def test_only_the_slices_of_a_box_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    write(compression="zlib")
    volume, read, opened = open_volume("slices"), Plane.read, list[str]()

    def noted(plane: Plane, key: tuple[slice, ...]) -> Any:
        opened.append(plane.path.name)
        return read(plane, key)

    monkeypatch.setattr(Plane, "read", noted)
    volume.read(Box(Vec3(8, 0, 0), Vec3(10, 20, 23)))
    assert opened == ["slice9.tif", "slice10.tif"]


def test_other_files_of_the_folder_are_left_out() -> None:
    write()
    Path("slices", "Thumbs.db").write_bytes(b"pictures")
    Path("slices", "._slice1.tif").write_bytes(b"of a Mac")
    assert open_volume("slices").size.z == 11


@pytest.mark.parametrize(
    ("options", "scale", "unit", "assumed"),
    [
        ({}, (1, 1, 1), None, False),
        ({"resolution": (2e4, 4e4), "resolutionunit": 3}, (0.5, 0.25, 0.5), "micrometer", True),
        (
            {"imagej": True, "resolution": (2, 4), "metadata": {"spacing": 3, "unit": "um"}},
            (3, 0.25, 0.5),
            "micrometer",
            False,
        ),
        (
            {"imagej": True, "resolution": (2, 4), "metadata": {"unit": "um"}},
            (0.5, 0.25, 0.5),
            "micrometer",
            True,
        ),
    ],
)
def test_the_size_of_voxels(options: Any, scale: Any, unit: str | None, assumed: bool) -> None:
    write(**options)
    volume = open_volume("slices")
    assert volume.grid.scale == pytest.approx(scale)
    assert volume.grid.units == (unit,) * 3
    assert bool(volume.assumed) == assumed


def mixed() -> None:
    write()
    write_png("others", voxels((1, 20, 23)))
    Path("others/slice1.png").rename("slices/slice12.png")


def of_other_extents() -> None:
    write()
    tifffile.imwrite("slices/slice4.tif", voxels((19, 23)))
    tifffile.imwrite("slices/slice5.tif", voxels((20, 23), "uint16"))


def of_several_planes() -> None:
    write()
    tifffile.imwrite("slices/slice4.tif", voxels((2, 20, 23)))


def damaged() -> None:
    write()
    Path("slices/slice4.tif").write_bytes(b"no picture")


def dangling() -> None:
    write()
    Path("slices/slice12.tif").symlink_to("no such file")


def dangling_png() -> None:
    write_png("slices", voxels((2, 20, 23)))
    Path("slices/slice3.png").symlink_to("no such file")


def with_a_folder() -> None:
    write_png("slices", voxels((2, 20, 23)))
    Path("slices/slice3.png").mkdir()


def empty() -> None:
    Path("slices").mkdir()


def of_volumes() -> None:
    empty()
    np.save("slices/a.npy", voxels())


FAULTS = {
    mixed: "has slices in TIFF and in PNG; put those of one volume in a folder of their own",
    of_other_extents: r"slice1.tif is 20x23 \(y, x\) of uint8, and slice4.tif is 19x23 .*\(2 of 11",
    of_several_planes: r"slice4.tif: has several planes.*as a volume, give slices/\*.tif",
    damaged: "slice4.tif: cannot be read as TIFF",
    dangling: "^slices/slice12.tif: cannot be read as a slice: No such file.*; remove it, or copy",
    dangling_png: "^slices/slice3.png: cannot be read as a slice: No such file or directory",
    with_a_folder: "^slices/slice3.png: cannot be read as a slice: Is a directory",
    empty: r"is a folder without slices \(.tif, .tiff, .png\); give a file, a folder with",
    of_volumes: r"; to run over each volume in it, give slices/\*.npy",
}


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__)
def test_a_folder_that_is_no_volume_is_refused(spoil: Any) -> None:
    spoil()
    with pytest.raises(InvalidInput, match=FAULTS[spoil]):
        open_volume("slices")


def test_a_slice_that_is_cut_or_gone_meanwhile() -> None:
    write()
    volume = open_volume("slices")
    Path("slices/slice2.tif").write_bytes(Path("slices/slice2.tif").read_bytes()[:200])
    Path("slices/slice3.tif").unlink()
    for z in (1, 2):
        with pytest.raises(Unreadable, match="slices: cannot be read at"):
            volume.read(Box(Vec3(z, 0, 0), Vec3(z + 1, 9, 9)))
    volume.read(Box(Vec3(3, 0, 0), Vec3(11, 9, 9)))


def test_the_folder_is_described() -> None:
    write()
    assert "11 slices, slice1.tif to slice11.tif" in describe_volume("slices")
    assert succeeds("info", "slices/").startswith("slices\n  11 slices")
    assert stem("slices/") == "slices"
    write("v1.5")
    assert stem("v1.5") == "v1.5"
    assert stem(".") == Path.cwd().name


def test_a_run_over_a_folder_gives_the_output_of_the_volume() -> None:
    write(values=voxels())
    succeeds("infer", "slices/", *RUN)
    assert close(read_main("slices.h5"), expected(voxels()))
    assert "has no dataset 'raw'; leave it out" in refused("infer", "slices:raw", *RUN)
    assert "slices-tiny.h5: " in succeeds("infer", "slices", *RUN[:2])


def test_slices_that_are_given_one_by_one_are_taken_for_a_volume() -> None:
    write()
    several = ("infer", *sorted(map(str, Path("slices").glob("*.tif"))), "--net", "tiny.yaml")
    said = "files are the slices of one volume, give their folder instead, slices/"
    assert said in refused(*several)
    assert said in refused(*several, "--out", "out/")
    assert not Path("out").exists()
    assert said in refused(*several, "--out", "out/", "--dry-run")


def test_stacks_and_networks_of_single_planes_run_one_by_one() -> None:
    write("stacks", [voxels(), voxels() // 2])
    stacks = sorted(map(str, Path("stacks").iterdir()))
    assert "2 volumes" in succeeds("infer", *stacks, "--net", "tiny.yaml", "--out", "out/")
    Path("flat.yaml").write_text(
        "name: flat\nin_features: 1\nlayers:\n  - conv: {features: 1, kernel: [1, 3, 3]}\n"
    )
    write("planes", voxels((2, 20, 23)))
    planes = sorted(map(str, Path("planes").iterdir()))
    random = ("--net", "flat.yaml", "--random-weights", "0")
    assert "2 volumes" in succeeds("infer", *planes, *random, "--out", "flat/")
