"""znni and other libraries read each other's files: yaozarrs, ome-zarr, ome-zarr-models."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest
import yaozarrs
from command_line import read_main, succeeds, voxels
from paths import SUPPORT

from znni.core.shapes import Box, Vec3
from znni.core.volume import Grid
from znni.volumes.locate import open_volume

SCRIPT = SUPPORT / "ome_zarr_peer.py"
VARIABLE = "ZNNI_OME_ZARR_PYTHON"
SCALE = (2.0, 0.5, 0.25)
OUTPUTS: dict[str, tuple[tuple[str, ...], tuple[float, ...], str]] = {
    "same.zarr": (("--border", "same"), (0, 0, 0), "float32"),
    "valid.zarr": (("--dtype", "float16"), (0, 1, 0.75), "float16"),
    "roi.zarr": (("--roi", "1:5,4:10,6:9", "--dtype", "uint8"), (2, 2, 1.5), "uint8"),
    "sharded.zarr": (("--sharded", "--compression", "gzip"), (0, 1, 0.75), "float32"),
    "raw.zarr": (("--compression", "none"), (0, 1, 0.75), "float32"),
}


pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


def peer(*arguments: str) -> str:
    """Return the output of ``ome_zarr_peer.py``."""
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no Python that has ome-zarr")
    command = [os.environ[VARIABLE], SCRIPT, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_input() -> None:
    """Write ``in.zarr`` with a scale and a unit."""
    import zarr

    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    steps = [{"type": "scale", "scale": SCALE}]
    image = {"axes": axes, "datasets": [{"path": "raw", "coordinateTransformations": steps}]}
    group = zarr.create_group(
        "in.zarr", attributes={"ome": {"version": "0.5", "multiscales": [image]}}
    )
    group.create_array("raw", data=voxels(), dimension_names=list("zyx"))


def write_outputs() -> None:
    write_input()
    for name, (options, _, _) in OUTPUTS.items():
        succeeds("infer", "in.zarr", "--net", "tiny.yaml", "--out", name, *options)


def test_outputs_are_valid() -> None:
    """Warnings are errors here; they are about the specification's recommendations."""
    write_outputs()
    for name in ("in.zarr", *OUTPUTS):
        assert yaozarrs.validate_zarr_store(name).ome_version() == "0.5"


@pytest.mark.slow
def test_ome_zarr_approves_and_reads_outputs() -> None:
    write_outputs()
    rows = map(json.loads, peer("read", *OUTPUTS).splitlines())
    for (name, (_, translation, dtype)), row in zip(OUTPUTS.items(), rows, strict=True):
        assert row == {
            "model": "Image 0.5",
            "name": name.removesuffix(".zarr"),
            "axes": ["c", "z", "y", "x"],
            "units": [None, *["micrometer"] * 3],
            "scale": [1, *SCALE],
            "translation": [0, *translation],
        }
        values, volume = np.load(f"{name}.npy"), open_volume(name)
        assert values.dtype == dtype
        np.testing.assert_array_equal(values, volume.read(Box(Vec3(0, 0, 0), volume.size)))


@pytest.mark.slow
def test_what_ome_zarr_writes_is_read() -> None:
    np.save("image.npy", voxels())
    peer("write", "image.npy")
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "of-hdf5.h5")
    for place in ("0.4.zarr", "0.5.zarr"):
        volume = open_volume(place)
        assert volume.grid == Grid(SCALE, (0, 0, 0), ("micrometer",) * 3)
        np.testing.assert_array_equal(volume.read(Box(Vec3(0, 0, 0), volume.size))[0], voxels())
        coarser = open_volume(f"{place}/s1")
        assert coarser.size == (7, 10, 11)
        assert coarser.grid.scale == pytest.approx((2, 0.5 * 20 / 10, 0.25 * 23 / 11))
        succeeds("infer", place, "--net", "tiny.yaml", "--out", "of-zarr.h5", "--overwrite")
        np.testing.assert_array_equal(read_main("of-zarr.h5"), read_main("of-hdf5.h5"))
