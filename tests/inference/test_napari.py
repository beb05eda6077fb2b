"""napari itself, of a Python of its own, runs the command that ``znni view`` prints for it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import zarr
from command_line import succeeds, voxels
from numpy.testing import assert_allclose, assert_array_equal
from paths import ROOT, SUPPORT

import znni
from znni.core.shapes import Box, Vec3
from znni.volumes.locate import open_volume

VARIABLE = "ZNNI_NAPARI_PYTHON"
SCALE = (2.0, 0.5, 0.25)  # micrometers
UNITS = ["pixel", *["micrometer"] * 3]
RUN = ("--net", "tiny.yaml", "--overwrite")

pytestmark = [
    pytest.mark.usefixtures("small_case", "fake_primitives"),
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no Python"),
]


def layers(line: str) -> list[dict[str, Any]]:
    """Return what napari shows after a command."""
    program = shlex.split(line)[-1]
    command = [os.environ[VARIABLE], SUPPORT / "napari_layers.py", program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]


def confocal() -> tuple[str, ...]:
    with h5py.File("in.h5", "w") as file:
        file["raw"] = voxels()
        file["raw"].attrs["element_size_um"] = SCALE
    return ("in.h5:/raw",)


def five_axes() -> tuple[str, ...]:
    root = zarr.create_group("in.zarr")
    values = np.stack([np.zeros((2, *voxels().shape), np.uint8), [voxels() // 2, voxels()]])
    root.create_array("0", shape=values.shape, dtype="u1")[...] = values
    kinds = {"t": "time", "c": "channel"}
    axes = [{"name": name, "type": kinds.get(name, "space")} for name in "tczyx"]
    for axis in axes[2:]:
        axis["unit"] = "micrometer"
    steps = [{"type": "scale", "scale": [9, 1, *SCALE]}]
    image: Any = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": steps}]}
    root.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    return ("in.zarr", "--time", "1", "--channel", "1")


def several_channels() -> tuple[str, ...]:
    metadata = {"axes": "ZCYX", "spacing": SCALE[0], "unit": "um"}
    values = np.stack([voxels() // 2, voxels()], axis=1)
    resolution = (1 / SCALE[2], 1 / SCALE[1])
    tifffile.imwrite("in.tif", values, imagej=True, metadata=metadata, resolution=resolution)
    return ("in.tif", "--channel", "1")


@pytest.mark.parametrize("write", [confocal, five_axes, several_channels])
@pytest.mark.parametrize("name", ["out.h5", "out.zarr", "out.tif"])
def test_from_a_file_to_a_picture_in_its_place(write: Any, name: str) -> None:
    place, *chosen = write()
    succeeds("infer", place, *chosen, *RUN, "--out", name)
    given, made = layers(znni.view(place, name).napari)
    output = open_volume(name)
    assert (given["kind"], made["kind"]) == ("Image", "Image")
    assert given["shapes"] == [[*voxels().shape]]
    assert made["shapes"] == [[2, *output.size]]
    assert given["sums"] == [voxels().sum()]
    assert_array_equal(given["units"], UNITS[1:])
    assert_array_equal(made["units"], UNITS)
    assert_allclose(given["scale"], SCALE)
    assert_allclose(made["scale"], (1, *SCALE))
    assert_allclose(given["translate"], (0, 0, 0))
    assert_allclose(made["translate"], (0, 0, 2 * SCALE[1], 3 * SCALE[2]))


def test_the_input_is_beside_each_map_from_the_middle_of_a_small_output_on() -> None:
    (place,) = confocal()
    succeeds("infer", place, *RUN, "--out", "out.h5", "--roi", "3:6,12:16,10:18")
    given, made = layers(znni.view(place, "out.h5").napari)
    first, *maps = made["shown"]
    values = open_volume("out.h5").read(Box(Vec3(0, 0, 0), Vec3(3, 4, 8)))
    assert_allclose(first, values[0, 1])
    for found, expected in zip(maps, values[:, 1], strict=True):
        assert_allclose(found, expected)
    for found in given["shown"]:
        assert_array_equal(found, voxels()[4])


def test_coarser_resolutions_lie_where_the_finest_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 8)
    (place,) = confocal()
    succeeds("infer", place, *RUN, "--out", "out.zarr", "--pyramid")
    _, made = layers(znni.view(place, "out.zarr").napari)
    assert made["shapes"] == [[2, 6, 15, 16], [2, 6, 15, 8], [2, 6, 8, 4]]
    size, start = np.array([15, 16]), np.array([2, 3])
    assert_allclose(np.array(made["extent"])[0, 2:], start * SCALE[1:])
    assert_allclose(np.array(made["extent"])[1, 2:], (start + size - 1) * SCALE[1:])


def test_a_plugin_of_napari_reads_pyramids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin, napari-ome-zarr 0.10, reads no translation; so this does not ask for it."""
    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 8)
    (place,) = confocal()
    succeeds("infer", place, *RUN, "--out", "out.zarr", "--pyramid")
    program = (
        f"import napari; viewer = napari.Viewer(); "
        f"viewer.open({str(Path('out.zarr').absolute())!r}, plugin='napari-ome-zarr')"
    )
    found = layers(f"python -c {shlex.quote(program)}")
    assert len(found) == 2  # a layer a map
    values = open_volume("out.zarr").read(Box(Vec3(0, 0, 0), Vec3(6, 15, 16)))
    for layer, map_values in zip(found, values, strict=True):
        assert layer["shapes"] == [[6, 15, 16], [6, 15, 8], [6, 8, 4]]
        assert layer["units"] == UNITS[1:]
        assert_allclose(layer["sums"][0], map_values.sum(dtype=np.float64), rtol=1e-6)
        assert_allclose(layer["scale"], SCALE)
