"""Outputs that cannot be made, or would destroy something, are refused; nothing changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import INFER, dry_run_of_refused, read_main, succeeds, write_volume
from command_line import refused_without_trace as refused
from llvmlite.binding import get_host_cpu_name

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")

NOBODY = 65534  # a user who owns nothing


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ram", "1GiBB"), "'1GiBB' is not a size of memory"),
        (("--ram", "16"), "did you mean 16GiB?"),
        (("--threads", 0), "threads"),
        (("--device", "gpu"), "--device gpu"),
        (("--gpus", "9x"), "9x"),
        (("--gpu-memory", "1GiB"), "--gpu-memory 1GiB"),
        (("--costs", "measured"), "znni calibrate"),
        (("--voxel-size", "1,2"), "no size of a voxel"),
    ],
)
def test_wrong_options_are_said_before_an_output_that_exists(
    options: tuple[object, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.machine.detect.detect_gpus", list)
    succeeds(*INFER)
    message = refused(*INFER, *options)
    assert said in message
    assert "exists" not in message


def test_pages_that_exist_hide_no_wrong_options() -> None:
    succeeds(*INFER)
    succeeds("view", "volume.h5", "out.h5")
    view = ("view", "volume.h5", "out.h5")
    assert "no dataset 'other'" in refused(*view, "--dataset", "other")
    assert "is not within" in refused(*view, "--roi", "0:99,:,:")
    assert "exists; give --overwrite" in refused(*view)


def test_an_output_that_exists() -> None:
    Path("out.h5").write_text("precious")
    assert "out.h5: exists; give --overwrite to" in refused(*INFER)
    assert Path("out.h5").read_text() == "precious"
    succeeds(*INFER, "--overwrite")
    assert read_main("out.h5").shape == (2, 6, 15, 16)
    assert not list(Path().glob("*.partial"))


def test_a_failure_leaves_the_output_that_it_should_replace() -> None:
    Path("out.h5").write_text("precious")
    write_volume(np.full((7, 20, 23), np.nan, np.float32))
    assert "out.h5 was not made" in refused(*INFER, "--overwrite")
    assert Path("out.h5").read_text() == "precious"
    assert not list(Path().glob("*.partial"))


def test_the_input_as_output(small_case: Path) -> None:
    before = Path("volume.h5").read_bytes()
    Path("link.h5").symlink_to("volume.h5")
    Path("kept.h5.partial").write_bytes(before)
    for source, out in (
        ("volume.h5", "volume.h5"),
        ("volume.h5:/raw", small_case / "volume.h5"),
        ("link.h5", "volume.h5"),
        ("volume.h5", "link.h5"),
    ):
        message = refused("infer", source, "--net", "tiny.yaml", "--out", out, "--overwrite")
        assert f"{out}: is the input" in message
    message = refused("infer", "kept.h5.partial", "--net", "tiny.yaml", "--out", "kept.h5")
    assert "kept.h5.partial: is the input" in message
    assert Path("volume.h5").read_bytes() == before
    assert Path("kept.h5.partial").read_bytes() == before


def test_the_mask_as_output() -> None:
    with h5py.File("mask.h5", "w") as file:
        file["mask"] = np.ones((7, 20, 23), np.uint8)
    before = Path("mask.h5").read_bytes()
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--mask", "mask.h5", "--out", "mask.h5")
    assert "mask.h5: is the mask" in refused(*run, "--overwrite")
    assert "mask.h5: is the mask" in dry_run_of_refused(*run, "--overwrite")
    assert Path("mask.h5").read_bytes() == before


def test_names_and_places_that_cannot_be_written() -> None:
    for name in ("out", "out.mrc"):
        said = refused(*INFER[:-1], name)
        assert said == (
            f"{name}: znni writes no format with this ending; use one of .h5, .hdf5, .mha, "
            f".mhd, .nii, .nii.gz, .nrrd, .nhdr, .npy, .tif, .tiff, .zarr"
        )
    plan = ("plan", "--net", "tiny.yaml", "--volume", "7,20,23", "--out")
    assert "none/plan.json: cannot be written" in refused(*plan, "none/plan.json")


def test_a_plan_replaces_nothing_but_a_plan_and_that_only_if_asked() -> None:
    plan = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out")
    succeeds(*plan, "plan.json")
    assert "plan.json: exists; write elsewhere, or give --overwrite" in refused(*plan, "plan.json")
    succeeds(*plan, "plan.json", "--overwrite")
    for other in ("tiny.yaml", "volume.h5"):
        before = Path(other).read_bytes()
        assert f"{other}: exists" in refused(*plan, other)
        assert f"{other}: not a plan" in refused(*plan, other, "--overwrite")
        assert Path(other).read_bytes() == before


def test_a_folder_without_permission(small_case: Path) -> None:
    (small_case / "locked").mkdir(mode=0o555)
    small_case.chmod(0o755)
    refused(*INFER, "--ram", "4096", code=3)  # loads all modules first,
    get_host_cpu_name()  # and LLVM, which is loaded where the user's cache cannot be read
    with without_privileges():
        message = refused(*INFER[:-1], "locked/out.h5")
        shown = dry_run_of_refused(*INFER[:-1], "locked/out.h5")
    assert "locked/out.h5: cannot be written there: Permission denied" in message
    assert shown.endswith(f"refused now   {message}\n")


@contextmanager
def without_privileges() -> Iterator[None]:
    """Run as another user for a while, because root may write anywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
