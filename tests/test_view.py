"""Pages to look at outputs, in a real browser where there is one, and lines for other viewers."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import h5py
import numpy as np
import pytest
from command_line import refused, succeeds, voxels, write_case
from fakes import fake_catalogue
from numpy.typing import NDArray

import znni
from znni.shapes import Box, Vec3
from znni.viewing import LazyArray
from znni.viewing.pictures import planes_in_grid, range_of, sampled
from znni.viewing.png import grey_png
from znni.viewing.region import shown
from znni.volumes.array import ArrayVolume

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
in_a_browser = pytest.mark.skipif(
    not BROWSER, reason="needs Chromium or Chrome; there is none here"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An output from voxel (0, 2, 3) of its input on."""
    write_case(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue())
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5")
    return tmp_path


def main_values() -> NDArray[np.float32]:
    with h5py.File("out.h5") as file:
        values: NDArray[np.float32] = file["main"][()]
    return values


def picture(content: bytes) -> NDArray[Any]:
    """A PNG as bytes (rows, columns) or (rows, columns, colours)."""
    image = pytest.importorskip("matplotlib.image")
    return np.rint(np.asarray(image.imread(BytesIO(content), "png")) * 255).astype(np.uint8)


def read_page(path: str) -> tuple[dict[str, Any], list[NDArray[np.uint8]]]:
    """What a page holds: its data, and its volumes in shades."""
    text = Path(path).read_text()
    found = re.search(r"const data = (\{.*\});", text)
    assert found
    data = json.loads(found[1])
    depth, height, width = data["size"]
    volumes = []
    for encoded in re.findall(r'src="data:image/png;base64,([^"]*)"', text):
        grid = picture(b64decode(encoded))
        planes = [
            grid[row : row + height, column : column + width]
            for row in range(0, grid.shape[0], height)
            for column in range(0, grid.shape[1], width)
        ]
        volumes.append(np.array(planes[:depth]))
    return data, volumes


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 7)])
def test_pictures_are_png(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(picture(grey_png(values)).reshape(*shape, -1)[..., 0], values)


def test_a_page_holds_input_and_output() -> None:
    said = succeeds("view", "volume.h5", "out.h5")
    assert said.startswith("out.html: 1,440 input voxels, 0:6,2:17,3:19\nnapari:\n  python -c ")
    data, (given, *maps) = read_page("out.html")
    assert (data["title"], data["start"], data["stride"]) == ("out over volume", [0, 2, 3], 1)
    assert [one["name"] for one in data["maps"]] == ["map 0 of 2", "map 1 of 2"]
    low, high = data["input"]["low"], data["input"]["high"]
    wanted = voxels()[:6, 2:17, 3:19].clip(low, high)
    np.testing.assert_allclose(low + given / 255 * (high - low), wanted, rtol=0, atol=0.5)
    for shades, values, limits in zip(maps, main_values(), data["maps"], strict=True):
        assert (limits["low"], limits["high"]) == (0, 1)
        np.testing.assert_allclose(shades / 255, values, rtol=0, atol=0.51 / 255)


def test_a_page_needs_nothing_from_elsewhere() -> None:
    succeeds("view", "volume.h5", "out.h5")
    text = Path("out.html").read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert set(re.findall(r'(?:src|href)="(.{5})', text)) == {"data:"}
    assert "default-src 'none'" in text


def test_part_of_it_at_a_stride() -> None:
    roi = ("--roi", "1:6,3:,:12")
    said = succeeds("view", "volume.h5", "out.h5", "--out", "p.html", "--stride", 2, *roi)
    assert "p.html: 630 input voxels, 1:6,3:17,3:12, one in 2 along each axis" in said
    data, (_, first, _) = read_page("p.html")
    assert (data["start"], data["stride"], data["size"]) == ([1, 3, 3], 2, [3, 7, 5])
    values = main_values()[0, 1:6:2, 1:15:2, 0:9:2]
    np.testing.assert_allclose(first / 255, values, rtol=0, atol=0.51 / 255)


def test_scaled_values_of_uint8() -> None:
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "u.h5", "--dtype", "uint8")
    succeeds("view", "volume.h5", "u.h5")
    data, (_, first, _) = read_page("u.html")
    assert data["maps"][0]["high"] == 1
    with h5py.File("u.h5") as file:
        np.testing.assert_array_equal(first, file["main"][0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "out.html: exists; give overwrite=True (--overwrite)"),
        (("--out", "p.html", "--roi", "0:7,:,:"), "region 0:7,2:17,3:19 is not within"),
        (("--out", "p.html", "--roi", "3:3,:,:"), "is not within 0:6,2:17,3:19"),
        (("--out", "none/p.html"), "cannot be written"),
        (("--out", "p.html", "--dataset", "other"), "no dataset 'other'"),
        (("--out", "p.html", "--stride", "0"), "0 is less than 1"),
    ],
)
def test_what_cannot_be_shown(options: tuple[str, ...], said: str) -> None:
    Path("out.html").write_text("precious")
    assert said in refused("view", "volume.h5", "out.h5", *options)
    assert Path("out.html").read_text() == "precious"
    assert not Path("p.html").exists()


def test_outputs_of_other_inputs() -> None:
    np.save("small.npy", np.zeros((5, 6, 7), np.uint8))
    message = refused("view", "small.npy", "out.h5")
    assert "the output is 6x15x16 voxels from 0x2x3 on, and the input is 5x6x7" in message
    assert "'voxel_offset' is None" in refused("view", "volume.h5", "small.npy")
    np.save("same.npy", np.zeros((5, 6, 7), np.uint8))
    assert "210 input voxels" in succeeds("view", "small.npy", "same.npy")


@pytest.mark.parametrize("name", ["scale", "voxel_offset"])
def test_damaged_attributes(name: str) -> None:
    with h5py.File("out.h5", "r+") as file:
        del file["main"].attrs[name]
        file["main"].attrs[name] = "three"
    assert f"attribute '{name}' is 'three'" in refused("view", "volume.h5", "out.h5")


def test_huge_outputs_are_seen_in_their_middle() -> None:
    huge = Box(Vec3(10, 20, 30), Vec3(10, 20, 30) + Vec3(2000, 3000, 100))
    assert shown(huge, None, None) == (Box(Vec3(914, 1424, 30), Vec3(1106, 1616, 130)), 1)
    assert shown(huge, None, 4) == (Box(Vec3(626, 1136, 30), Vec3(1394, 1904, 130)), 4)
    assert shown(Box(Vec3(0, 0, 0), Vec3(400, 300, 200)), None, None)[1] == 3
    with pytest.raises(znni.ZnniError, match=r"give stride=3 \(--stride 3\)"):
        shown(Box(Vec3(0, 0, 0), Vec3(400, 300, 200)), None, 2)


def test_samples_are_read_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.viewing.pictures.SLAB", 700)
    values = voxels((2, 13, 11, 10))
    box = Box(Vec3(1, 2, 3), Vec3(13, 9, 10))
    for stride in (1, 2, 3, 5):
        found = sampled(ArrayVolume(values), 1, box, stride)
        np.testing.assert_array_equal(
            found, values[1, 1:13, 2:9, 3:10][(slice(None, None, stride),) * 3]
        )


def test_shades() -> None:
    assert range_of(np.float32([0, 0.1]), output=True) == (0, 1)
    assert range_of(np.float32([0, 0.1]), output=False) == pytest.approx((0.0005, 0.0995))
    assert range_of(np.float32([5, 5, np.nan]), output=True) == (5, 6)
    assert range_of(np.float32([np.inf]), output=True) == (0, 1)
    grid = planes_in_grid(np.ones((5, 2, 3), np.uint8))
    assert grid.shape == (6, 6)
    assert grid.sum() == 5 * 2 * 3


@pytest.mark.parametrize(
    "key",
    [
        np.s_[0],
        np.s_[:, 2],
        np.s_[..., 3],
        np.s_[-1, ..., -1],
        np.s_[0, 1:5:2, ::-1, -9:-2],
        np.s_[:, 3:3],
        np.s_[1, 2, 3, 4],
        np.s_[:],
        np.s_[::-1, ::-2],
    ],
)
def test_volumes_are_indexed_as_arrays(key: Any) -> None:
    values, lazy = main_values(), LazyArray("out.h5")
    assert (lazy.shape, lazy.ndim, lazy.dtype) == (values.shape, 4, values.dtype)
    found = lazy[key]
    np.testing.assert_array_equal(found, values[key])
    assert found.shape == values[key].shape
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(np.asarray(lazy), values)


def run_line(line: str, monkeypatch: pytest.MonkeyPatch, name: str) -> MagicMock:
    """Run a line's program with a stand-in for the viewer."""
    viewer = MagicMock(spec=ModuleType, name=name)
    for attribute in (
        "Viewer",
        "run",
        "CoordinateSpace",
        "LocalVolume",
        "ImageLayer",
        "ViewerState",
    ):
        setattr(viewer, attribute, MagicMock(return_value=MagicMock()))
    monkeypatch.setitem(sys.modules, name, viewer)
    monkeypatch.setattr("builtins.input", lambda _prompt: "")
    python, option, program = shlex.split(line)
    assert (python, option) == ("python", "-c")
    exec(program, {})
    return viewer


def test_the_line_for_napari(monkeypatch: pytest.MonkeyPatch) -> None:
    line = znni.view("volume.h5", "out.h5", dataset="raw").napari
    viewer = run_line(line, monkeypatch, "napari")
    given, made = viewer.Viewer.return_value.add_image.call_args_list
    np.testing.assert_array_equal(given.args[0][0], voxels())
    np.testing.assert_array_equal(made.args[0][:], main_values())
    assert made.kwargs["translate"] == (0.0, 2.0, 3.0)
    viewer.run.assert_called_once_with()


def test_the_line_for_neuroglancer(monkeypatch: pytest.MonkeyPatch) -> None:
    line = znni.view("volume.h5", "out.h5").neuroglancer
    viewer = run_line(line, monkeypatch, "neuroglancer")
    given, made = viewer.LocalVolume.call_args_list
    np.testing.assert_array_equal(given.args[0][0], voxels())
    np.testing.assert_array_equal(made.args[0][:], main_values())
    assert made.kwargs["voxel_offset"] == [0, 0, 2, 3]
    state = viewer.ViewerState.return_value
    assert [call.args[0] for call in state.layers.__setitem__.call_args_list] == ["input", "output"]
    viewer.Viewer.return_value.set_state.assert_called_once_with(state)


def browse(*options: str, at: str) -> str:
    """Open a page in a browser without a window, and give the page as it is then."""
    address = f"{Path('out.html').absolute().as_uri()}#{at}"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=profile"]
    size = ["--window-size=1200,900", "--force-device-scale-factor=1"]
    done = subprocess.run(
        [*command, *size, *options, address],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    return done.stdout


@in_a_browser
def test_a_browser_shows_the_values_at_a_place() -> None:
    succeeds("view", "volume.h5", "out.h5")
    for (z, y, x), feature in (((0, 2, 3), 0), ((4, 10, 18), 1)):
        page = browse(
            "--dump-dom", "--enable-logging=stderr", at=f"z={z}&y={y}&x={x}&map={feature}"
        )
        assert "<title>out over volume</title>" in page
        assert re.findall("<output>([^<]*)</output>", page) == [str(z), str(y), str(x), "70 %"]
        given = re.search('id="input-value">([^<]*)<', page)
        made = re.search('id="output-value">([^<]*)<', page)
        assert given
        assert made
        assert float(given[1]) == pytest.approx(voxels()[z, y, x].clip(1, 198), abs=1)
        value = main_values()[feature, z, y - 2, x - 3]
        assert float(made[1]) == pytest.approx(value, abs=0.005)


@in_a_browser
def test_a_browser_draws_sections() -> None:
    succeeds("view", "volume.h5", "out.h5")
    _, (given, made, _) = read_page("out.html")
    shots = {}
    for show in ("input", "output", "overlay"):
        at = f"z=3&y=9&x=11&opacity=50&show={show}"
        browse("--screenshot=shot.png", at=at)
        shots[show] = picture(Path("shot.png").read_bytes()).astype(int)
    top, left = np.argwhere((shots["input"] != shots["output"]).any(axis=2)).min(axis=0)
    found = np.argwhere((shots["input"][top + 5, left:, :3] == (20, 23, 26)).all(axis=1))
    scale = found.min() / given.shape[2]  # up to the ground beside the first section
    assert scale > 10
    for y, x in ((5, 3), (12, 14), (14, 0)):  # not below the caption, nor at the cross
        row, column = int(top + (y + 0.5) * scale), int(left + (x + 0.5) * scale)
        grey, value = int(given[3, y, x]), int(made[3, y, x])
        assert shots["input"][row, column, 0] == pytest.approx(grey, abs=1)
        assert shots["output"][row, column, 2] == pytest.approx(value, abs=1)
        share = 0.5 * value / 255
        wanted = [grey + share * (colour - grey) for colour in (240, 140, 60)]
        assert shots["overlay"][row, column, :3] == pytest.approx(wanted, abs=1.5)
