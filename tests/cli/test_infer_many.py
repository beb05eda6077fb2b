"""``znni infer`` over several volumes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from command_line import cut, read_main, refused, succeeds, voxels, znni
from tiny_network import close, expected

from znni.core.errors import in_one_line
from znni.inference.many import infer_many
from znni.inference.many_dry_run import rehearse_many
from znni.inference.request import request_for

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
        ((), "several volumes need a folder for their outputs; give --out FOLDER/, or --out b"),
        (("--out", "out.h5"), "--out out.h5 names one file for several volumes"),
        (("--out", "out", "--part", "0/2"), "--part is for one volume"),
        (("--out", "out", "--cluster", "local:2"), "--cluster is for one volume"),
        (("--out", "out", "--bits", "same"), "--bits same is for --cluster; give both"),
        (("--out", "out", "--recheck", "all"), "--recheck all is for --cluster; give both"),
        (("--out", "out", "--part", "0/2", "--cluster", "local:2"), "both share out the blocks"),
        (("--out", "out", "--cluster", "local:2", "--dry-run"), "--dry-run is about this machine"),
    ],
)
def test_what_makes_no_sense_for_several_volumes_is_refused(
    given: tuple[str, ...], said: str
) -> None:
    assert said in refused("infer", "a.npy", "b.npy", *NET, *given)
    assert not Path("out").exists()


def test_a_dry_run_predicts_each_volume_and_touches_nothing() -> None:
    np.save("wide.npy", voxels((7, 20, 90)))
    succeeds("infer", "b.npy", *NET, "--out", "out/")
    before = {path: path.stat().st_mtime_ns for path in Path("out").iterdir()}
    dry = ("infer", "a.npy", "b.npy", "wide.npy", *NET, "--out", "out/", "--dry-run")
    *each, together = succeeds(*dry).splitlines()
    assert re.fullmatch(r"out/a-tiny\.h5 +[\d.]+ s +[\d.]+ [MG]iB", each[0])
    assert each[1].split() == ["out/b-tiny.h5", "finished", "before"]
    assert each[2].startswith("out/wide-tiny.h5  ")
    assert re.fullmatch(
        r"2 volumes in [\d.]+ s together and \d+ MiB, as predicted; 1 volume finished before",
        together,
    )
    assert {path: path.stat().st_mtime_ns for path in Path("out").iterdir()} == before


def test_a_dry_run_lists_what_would_be_refused() -> None:
    np.save("small.npy", voxels((1, 20, 23)))
    given = ("infer", "a.npy", "gone.npy", "small.npy", *NET, "--out", "out/")
    done = znni(*given, "--dry-run")
    assert (done.code, done.err) == (2, "")
    found = done.out.splitlines()
    assert "refused now  gone.npy: no such file" in found[1]
    assert "refused now  the volume is 1x20x23 voxels, smaller than" in found[2]
    assert found[3].endswith("; 2 volumes refused")
    assert not Path("out").exists()
    assert znni(*given).code == done.code


def test_a_dry_run_names_the_folder_that_a_run_would_make() -> None:
    given = ("infer", "a.npy", *NET, "--out", "out/", "--sharded", "--dry-run")
    assert "out/a-tiny.h5: HDF5 takes no --sharded" in znni(*given).out
    assert not Path("out").exists()


def test_a_dry_run_counts_what_is_made_ready_once() -> None:
    np.save("wide.npy", voxels((7, 20, 90)))
    request = request_for("", "tiny.yaml", "out", threads=1)
    alone, twice, other = (
        rehearse_many(names, request).seconds
        for names in (["a.npy"], ["a.npy", "b.npy"], ["a.npy", "wide.npy"])
    )
    (run,) = rehearse_many(["a.npy"], request).runs.values()
    time = run.plan.time
    assert alone == pytest.approx(run.seconds)
    assert twice - alone == pytest.approx(alone - time.once)
    assert other - alone > time.building + time.warming


def test_an_output_without_its_option_is_recognised() -> None:
    said = refused("infer", "a.npy", "out.h5", *NET)
    assert "out.h5: there is no such volume; if it is the output, give --out out.h5" in said


def test_a_damaged_output_is_called_so() -> None:
    run = ("infer", "a.npy", "b.npy", *NET, "--out", "out/")
    succeeds(*run)
    cut("out/a-tiny.h5", 0.5)
    done = znni(*run)
    assert done.code == 2
    assert "out/a-tiny.h5: cannot be read as HDF5" in done.err
    assert "; delete it, or give --overwrite to replace it" in done.err
    assert "does not say what" not in done.err
    Path("out/a-tiny.h5").unlink()
    assert "1 volume finished before" in succeeds(*run)


def test_a_stop_says_how_many_volumes_are_finished() -> None:
    np.save("c.npy", voxels())

    def stop(done: int, _all: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        infer_many(["a.npy", "b.npy", "c.npy"], "tiny.yaml", "out", progress=stop)
    said = in_one_line(stopped.value)
    assert "2 of 3 volumes are finished; the same command goes on from there" in said
    again = succeeds("infer", "a.npy", "b.npy", "c.npy", *NET, "--out", "out/")
    assert "1 volume, 1,440 voxels" in again
    assert "2 volumes finished before" in again


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize("folder", ["a.npy/sub", "/proc/sub"])
def test_folders_that_cannot_be_made(folder: str, dry: tuple[str, ...]) -> None:
    said = refused("infer", "a.npy", *NET, "--out", f"{folder}/", *dry)
    assert said.startswith(f"{folder}: this folder cannot be made: ")


def test_a_dry_run_looks_at_the_disk_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []

    def usage(path: Any) -> Any:
        looked_at.append(Path(path).absolute())
        return MagicMock(free=2**50)

    monkeypatch.setattr("shutil.disk_usage", usage)
    succeeds("infer", "a.npy", *NET, "--out", "made/here/", "--dry-run")
    assert looked_at
    assert all(Path.cwd() in (path, *path.parents) for path in looked_at)
    assert not list(Path().glob("*znni*"))


@pytest.mark.parametrize("suffix", ["tif", "-cells", "-cells.png"])
def test_a_suffix_has_the_ending_of_a_format(suffix: str) -> None:
    said = refused("infer", "a.npy", *NET, "--out", "out/", f"--suffix={suffix}")
    assert f"--suffix {suffix}: znni writes no format with this ending" in said
    assert "--suffix -cells.tif" in said


def test_a_suffix_needs_a_folder() -> None:
    assert "give --out FOLDER/" in refused("infer", "a.npy", *NET, "--suffix", ".tif")
