"""Volumes become layers in their place, and layers become inputs, also without napari."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import OUTPUT, succeeds, voxels

import znni
from znni.core.errors import InvalidInput
from znni.napari.layers import PLACE, layer_of, scan_files, source_of, voxel_size_of

SCALE = (2.0, 0.5, 0.25)
RUN = ("infer", "in.h5", "--net", "tiny.yaml")

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


@pytest.fixture(autouse=True)
def confocal(small_case: Path) -> None:
    """``in.h5`` has voxels of micrometers."""
    with h5py.File(small_case / "in.h5", "w") as file:
        file["raw"] = voxels()
        file["raw"].attrs["element_size_um"] = SCALE


def layer(**given: Any) -> Any:
    """Return what an image layer of napari has, as far as runs need it."""
    known: dict[str, Any] = {
        "name": "given",
        "rgb": False,
        "multiscale": False,
        "data": voxels(),
        "metadata": {},
        "source": SimpleNamespace(path=None),
        "ndim": 3,
        "scale": np.ones(3),
        "translate": np.zeros(3),
        "rotate": np.eye(3),
        "affine": SimpleNamespace(affine_matrix=np.eye(4)),
        "units": ["pixel"] * 3,
    }
    known |= given
    made = SimpleNamespace(**known)
    made.data_to_world = lambda voxel: made.translate + made.scale * np.array(voxel)
    return made


def test_an_input_lies_where_its_file_says() -> None:
    made = layer_of("in.h5")
    assert made.kind == "image"
    np.testing.assert_array_equal(np.asarray(made.data), voxels())
    expected = {
        "name": "in.h5",
        "multiscale": False,
        "metadata": {PLACE: "in.h5"},
        "scale": SCALE,
        "translate": (0, 0, 0),
        "units": ("micrometer",) * 3,
    }
    assert made.settings == expected


def test_an_output_of_values_lies_in_its_place() -> None:
    succeeds(*RUN, "--out", "out.zarr")
    made = layer_of("out.zarr", "mine")
    assert made.kind == "image"
    assert made.data.shape == OUTPUT
    assert made.settings["name"] == "mine"
    assert made.settings["scale"] == (1, *SCALE)
    assert made.settings["translate"] == (0, 0, 2 * SCALE[1], 3 * SCALE[2])
    assert made.settings["units"] == ("pixel", *["micrometer"] * 3)
    assert made.settings["contrast_limits"] == (0, 1)  # the network ends with a sigmoid
    assert made.settings["colormap"] == "magma"


@pytest.mark.parametrize("name", ["out.zarr", "out.h5"])
def test_an_output_lies_over_the_layer_of_its_input(name: str) -> None:
    succeeds(*RUN, "--out", name)
    over = layer(scale=np.array([3.0, 2, 1]), translate=np.array([10.0, 20, 30]))
    made = layer_of(name, over=over).settings
    assert made["scale"] == (1, 3, 2, 1)
    np.testing.assert_allclose(made["translate"], (0, 10, 20 + 2 * 2, 30 + 3 * 1))
    np.testing.assert_array_equal(made["affine"], np.eye(5))


def test_labels_have_their_names() -> None:
    net = Path("tiny.yaml")
    net.write_text(f"{net.read_text()}labels: {{soma: 1, axon: 3}}\n")
    succeeds(*RUN, "--out", "out.zarr", "--labels")
    made = layer_of("out.zarr")
    assert (made.kind, made.data.shape) == ("labels", OUTPUT[1:])
    assert made.settings["properties"] == {"label": ["", "soma", "", "axon"]}
    succeeds(*RUN, "--out", "above.zarr", "--threshold", "0.5")
    assert layer_of("above.zarr").kind == "labels"


def test_bytes_have_the_limits_of_their_type() -> None:
    succeeds(*RUN, "--out", "out.zarr", "--dtype", "uint8")
    assert layer_of("out.zarr").settings["contrast_limits"] == (0, 255)


def test_a_pyramid_is_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 8)
    succeeds(*RUN, "--out", "out.zarr", "--pyramid")
    made = layer_of("out.zarr")
    assert made.settings["multiscale"]
    assert [level.shape[0] for level in made.data] == [2, 2, 2]


def test_a_run_reads_the_file_of_a_layer_or_its_array() -> None:
    assert source_of(layer(metadata={PLACE: "in.h5"})) == "in.h5"
    with h5py.File("in.h5") as file:
        assert source_of(layer(data=file["raw"])) == f"{file.filename}:/raw"
    array = voxels()
    assert source_of(layer(data=array)) is array
    assert source_of(layer(data=[array, array[::2]], multiscale=True)) is array
    with pytest.raises(InvalidInput, match="picture in colours"):
        source_of(layer(rgb=True))


def test_voxels_are_those_that_napari_shows() -> None:
    assert voxel_size_of(layer()) is None
    assert voxel_size_of(layer(scale=np.array(SCALE))) == "2,0.5,0.25"
    size = voxel_size_of(layer(scale=np.array(SCALE), units=["micrometer"] * 3))
    assert znni.open_volume(voxels(), voxel_size=size).grid.units[0] == "micrometer"


def test_the_channels_of_a_scan_are_found(tmp_path: Path) -> None:
    names = ["ct_0000.nii.gz", "ct_0001.nii.gz", "ct_12_0000.nii.gz", "mr_0000.nii.gz", "lone.nii"]
    for name in names:
        (tmp_path / name).touch()
    files = scan_files(layer(metadata={PLACE: str(tmp_path / names[0])}))
    assert [Path(file).name for file in files] == names[:2]
    (alone,) = scan_files(layer(source=SimpleNamespace(path=str(tmp_path / "lone.nii"))))
    assert Path(alone).name == "lone.nii"
    with pytest.raises(InvalidInput, match="open the scan's file"):
        scan_files(layer())
