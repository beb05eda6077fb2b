"""``znni infer`` over several volumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import read_main, refused, succeeds, voxels, znni
from tiny_network import close, expected

NET = ("--net", "tiny.yaml")

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")


@pytest.fixture(autouse=True)
def _files(small_case: None) -> None:  # noqa: ARG001 - it makes the folder
    for name in ("a", "b"):
        np.save(f"{name}.npy", voxels())


def test_several_volumes_are_written_into_a_folder() -> None:
    said = succeeds("infer", "a.npy", "b.npy", *NET, "--out", "out/")
    assert said.startswith("out/: 2 volumes, 2,880 voxels in ")
    for name in ("a", "b"):
        assert close(read_main(f"out/{name}-tiny.h5"), expected(voxels()))
    assert "2 volumes finished before" in succeeds("infer", "a.npy", "b.npy", *NET, "--out", "out")
    assert "1 volume," in succeeds("infer", "a.npy", *NET, "--out", "out", "--suffix", ".npy")


def test_failures_are_listed_at_the_end() -> None:
    Path("b.npy").write_bytes(b"no array")
    done = znni("infer", "b.npy", "gone.npy", "a.npy", *NET, "--out", "out/")
    assert done.code == 2
    lines = done.err.splitlines()
    assert [line.startswith("znni: error: ") for line in lines] == [True, True]
    assert "b.npy" in lines[0]
    assert "gone.npy" in lines[1]
    assert [path.name for path in Path("out").iterdir()] == ["a-tiny.h5"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "several volumes need a folder for their outputs; give --out FOLDER/"),
        (("--out", "out.h5"), "--out out.h5 names one file for several volumes"),
        (("--out", "out", "--part", "0/2"), "--part is for one volume"),
        (("--out", "out", "--cluster", "local:2"), "--cluster is for one volume"),
        (("--out", "out", "--dry-run"), "--dry-run is for one volume"),
    ],
)
def test_what_makes_no_sense_for_several_volumes_is_refused(
    given: tuple[str, ...], said: str
) -> None:
    assert said in refused("infer", "a.npy", "b.npy", *NET, *given)
    assert not Path("out").exists()


def test_an_output_without_its_option_is_recognised() -> None:
    said = refused("infer", "a.npy", "out.h5", *NET)
    assert "out.h5: there is no such volume; if it is the output, give --out out.h5" in said


def test_a_suffix_needs_a_folder() -> None:
    assert "give --out FOLDER/" in refused("infer", "a.npy", *NET, "--suffix", ".tif")
