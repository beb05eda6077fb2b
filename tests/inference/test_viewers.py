"""Tests of other viewers: the commands that start them, and arrays that are read on demand."""

from __future__ import annotations

import shlex
import sys
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import h5py
import numpy as np
import pytest
from command_line import read_main, refused, succeeds, voxels
from command_line import znni as run_command

import znni
from znni.inference.viewing import LazyArray

pytestmark = pytest.mark.usefixtures("fake_primitives", "small_output")


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
    values, lazy = read_main("out.h5"), LazyArray("out.h5")
    assert (lazy.shape, lazy.ndim, lazy.dtype) == (values.shape, 4, values.dtype)
    found = lazy[key]
    np.testing.assert_array_equal(found, values[key])
    assert found.shape == values[key].shape
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(np.asarray(lazy), values)


def test_a_single_map_needs_no_axis() -> None:
    one = LazyArray("out.h5", channel=1, squeeze=True)
    values = read_main("out.h5")[1]
    assert (one.shape, one.ndim, one.size) == (values.shape, 3, values.size)
    for key in (np.s_[0], np.s_[..., 3], np.s_[1:3, ::-1], np.s_[2, 3, 4], np.s_[:, 3:3]):
        np.testing.assert_array_equal(one[key], values[key])
    np.testing.assert_array_equal(np.asarray(one), values)
    assert LazyArray("out.h5", squeeze=True).ndim == 4


def run_line(line: str, monkeypatch: pytest.MonkeyPatch, name: str) -> MagicMock:
    """Run a command's program with a fake viewer."""
    viewer = MagicMock(spec=ModuleType, name=name)
    for attribute in (
        "Viewer",
        "run",
        "CoordinateSpace",
        "LocalVolume",
        "ImageLayer",
        "SegmentationLayer",
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
    np.testing.assert_array_equal(given.args[0][:], voxels())
    np.testing.assert_array_equal(made.args[0][:], read_main("out.h5"))
    assert given.kwargs["translate"] == [0.0, 0.0, 0.0]
    assert made.kwargs["translate"] == [0.0, 0.0, 2.0, 3.0]
    assert "units" not in made.kwargs
    opened_at = viewer.Viewer.return_value.dims.set_point
    opened_at.assert_called_once_with([-3, -2, -1], [3.0, 2 + 7.0, 3 + 8.0])
    assert viewer.Viewer.return_value.dims.axis_labels[-3:] == ["z", "y", "x"]
    viewer.run.assert_called_once_with()


def test_the_line_for_neuroglancer(monkeypatch: pytest.MonkeyPatch) -> None:
    line = znni.view("volume.h5", "out.h5").neuroglancer
    viewer = run_line(line, monkeypatch, "neuroglancer")
    given, made = viewer.LocalVolume.call_args_list
    np.testing.assert_array_equal(given.args[0][0], voxels())
    np.testing.assert_array_equal(made.args[0][:], read_main("out.h5"))
    assert made.kwargs["voxel_offset"] == [0, 0, 2, 3]
    state = viewer.ViewerState.return_value
    assert state.position == [3 + 8, 2 + 7, 0 + 3]
    _, of_view = viewer.CoordinateSpace.call_args_list
    assert of_view.kwargs["names"] == ["x", "y", "z"]  # x to the right, y downwards
    assert [call.args[0] for call in state.layers.__setitem__.call_args_list] == ["input", "output"]
    viewer.Viewer.return_value.set_state.assert_called_once_with(state)


def test_the_lines_for_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("labels.npy", voxels())
    page = znni.view("volume.h5", "labels.npy", labels=True)
    viewer = run_line(page.napari, monkeypatch, "napari")
    (made,) = viewer.Viewer.return_value.add_labels.call_args_list
    np.testing.assert_array_equal(made.args[0][:], voxels())
    viewer = run_line(page.neuroglancer, monkeypatch, "neuroglancer")
    assert viewer.LocalVolume.call_args.kwargs["volume_type"] == "segmentation"
    viewer.SegmentationLayer.assert_called_once()
    assert viewer.ImageLayer.call_args_list[0].kwargs.keys() == {"source"}


def test_the_lines_choose_what_the_run_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File("series.h5", "w") as file:
        file["raw"] = np.stack([voxels(), voxels() // 2])
    succeeds("infer", "series.h5", "--net", "tiny.yaml", "--time", "1", "--out", "second.h5")
    page = znni.view("series.h5", "second.h5")
    viewer = run_line(page.napari, monkeypatch, "napari")
    given, _ = viewer.Viewer.return_value.add_image.call_args_list
    np.testing.assert_array_equal(given.args[0][:], voxels() // 2)
    viewer = run_line(page.neuroglancer, monkeypatch, "neuroglancer")
    np.testing.assert_array_equal(viewer.LocalVolume.call_args_list[0].args[0][0], voxels() // 2)


def test_the_line_for_napari_gives_all_resolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 8)
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.zarr", "--pyramid")
    viewer = run_line(znni.view("volume.h5", "out.zarr").napari, monkeypatch, "napari")
    given, made = viewer.Viewer.return_value.add_image.call_args_list
    assert "multiscale" not in given.kwargs
    assert made.kwargs["multiscale"]
    assert [level.shape for level in made.args[0]] == [(2, 6, 15, 16), (2, 3, 8, 8)]
    np.testing.assert_array_equal(made.args[0][0][:], read_main("out.h5"))


def test_the_commands_are_short_and_open_the_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    said = succeeds("view", "volume.h5", "out.h5", "--dataset", "raw", "--values")
    command = "znni view volume.h5 out.h5 --dataset raw --values --viewer"
    for viewer in ("napari", "neuroglancer"):
        assert f"{viewer}: {command} {viewer}\n" in said
    assert len(max(said.splitlines(), key=len)) < 100
    assert "napari is not installed beside znni: pip install 'napari[all]'" in refused(
        "view", "volume.h5", "out.h5", "--viewer", "napari"
    )
    monkeypatch.setattr("znni.cli.view.find_spec", lambda _name: True)
    run = MagicMock(return_value=MagicMock(returncode=3))
    monkeypatch.setattr("znni.cli.view.subprocess.run", run)
    done = run_command(*command.split()[1:], "napari")
    assert done.code == 3
    (python, _, option, program), *_ = run.call_args.args
    assert (python, option) == (sys.executable, "-c")
    page = znni.view("volume.h5", "out.h5", "other.html", dataset="raw", labels=False)
    assert shlex.split(page.napari)[-1] == program
