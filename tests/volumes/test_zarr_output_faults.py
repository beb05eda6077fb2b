"""A Zarr output that fails never looks complete, and destroys nothing."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zarr
from command_line import OUTPUT, refused, succeeds, voxels
from fsspec.registry import _registry
from left_behind import open_below
from zarr_outputs import (
    FIRST,
    PLACES,
    SECOND,
    SIZE,
    as_written,
    begun,
    exists,
    new_output,
    write,
)

from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Box, Vec3
from znni.volumes.locate import open_volume
from znni.volumes.partial_file import hold
from znni.volumes.partial_folder import PartialFolder
from znni.volumes.remote_output import RemoteFolder

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "memory_files")

INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out")


def check_no_whole_image(place: str) -> None:
    """Check that an unfinished output opens only under its own name, and not at a URL."""
    with pytest.raises(InvalidInput):
        open_volume(place)
    if "://" in place:
        with pytest.raises(InvalidInput):
            open_volume(as_written(place))
    else:
        assert (open_volume(as_written(place)).read(FIRST) == 1).all()


@pytest.mark.parametrize("place", PLACES)
def test_an_abandoned_output_keeps_its_blocks(place: str) -> None:
    assert new_output(place).abandon() == f"{place} was not made"
    assert not exists(place)
    assert not exists(f"{place}.partial")
    output = begun(place)
    assert output.abandon() == f"{place} was not made"
    assert not exists(f"{place}.partial")
    output = begun(place)
    write(output, FIRST, 1)
    told = output.abandon()
    resume_advice = "the same command goes on from there"
    if "://" in place:
        resume_advice = (
            "outputs at URLs cannot be continued: give overwrite=True (--overwrite) to start again"
        )
    assert (
        told
        == f"{place} was not made; {as_written(place)}/0 holds 1 finished block; {resume_advice}"
    )
    assert exists(f"{place}.partial")
    check_no_whole_image(place)
    assert (open_volume(f"{as_written(place)}/0").read(FIRST) == 1).all()
    if "://" in place:
        with pytest.raises(
            InvalidInput,
            match=r"partial: exists, so .*\(--overwrite\) to delete both: outputs at URLs",
        ):
            new_output(place)
    again = begun(place, overwrite="://" in place)
    write(again, SECOND, 2)
    again.finish({})
    assert not open_volume(place).read(FIRST).any()
    assert not exists(f"{place}.partial")


def test_a_new_ledger_is_on_the_disk_before_what_an_old_one_describes_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Power may fail between."""
    output = begun("out.zarr")
    write(output, FIRST, 1)
    output.abandon()
    found: list[bool] = []

    def fsync(descriptor: int) -> None:
        ledger = Path("out.zarr.partial.ledger")
        assert os.path.samestat(os.fstat(descriptor), ledger.stat())
        found.append(exists("out.zarr.partial/0/zarr.json"))

    monkeypatch.setattr("znni.volumes.ledger_file.os.fsync", fsync)
    again = new_output("out.zarr")
    assert found == [True]
    assert not exists("out.zarr.partial/0")
    again.abandon()
    new_output("out.zarr").abandon()
    assert len(found) == 1  # nothing was there: no wait for the disk


def test_a_folder_that_cannot_be_emptied_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = begun("out.zarr")
    write(output, FIRST, 1)
    output.abandon()

    def refuse(_folder: PartialFolder) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(PartialFolder, "empty", refuse)
    for _ in range(3):
        with pytest.raises(InvalidInput, match=r"out\.zarr: cannot be written there: Permission"):
            new_output("out.zarr")
    assert open_below(Path()) == []
    assert exists("out.zarr.partial/0/zarr.json")


@pytest.mark.parametrize("place", PLACES)
def test_two_runs_cannot_write_one_place(place: str) -> None:
    first = begun(place)
    write(first, FIRST, 1)
    with pytest.raises(
        InvalidInput, match=r"out\.zarr\.partial: (is in use, maybe by|exists, so) an"
    ):
        new_output(place)
    write(first, SECOND, 1)
    first.finish({})
    assert (open_volume(place).read(Box(Vec3(0, 0, 0), SIZE)) == 1).all()


def test_a_run_that_waited_for_another_does_not_take_its_output() -> None:
    """The waiting run opened the partial folder just before the other completed it."""
    first = PartialFolder("out.zarr")
    first.take(overwrite=False)
    late = os.open("out.zarr.partial", os.O_RDONLY)
    first.complete()
    with pytest.raises(InvalidInput, match="is in use"):
        hold(late, Path("out.zarr.partial"))
    os.close(late)


def test_an_output_that_exists(small_case: Path) -> None:
    succeeds(*INFER, "out.zarr")
    before = json.loads(Path("out.zarr/0/zarr.json").read_text())
    assert "out.zarr: exists; give --overwrite to" in refused(*INFER, "out.zarr")
    assert json.loads(Path("out.zarr/0/zarr.json").read_text()) == before
    succeeds(*INFER, "out.zarr", "--overwrite", "--roi", "1:5,4:10,6:9")
    assert open_volume("out.zarr").size == (4, 6, 3)
    Path("file.zarr").write_text("precious")
    assert "file.zarr: exists" in refused(*INFER, "file.zarr")
    succeeds(*INFER, "file.zarr", "--overwrite")
    (small_case / "other.zarr").mkdir()
    (small_case / "other.zarr" / "thesis.tex").write_text("precious")
    said = refused(*INFER, "other.zarr", "--overwrite")
    assert said == "other.zarr: is a folder of something else, and is not replaced; name another"
    assert (small_case / "other.zarr" / "thesis.tex").read_text() == "precious"
    left = {path.name for path in small_case.iterdir() if path.suffix in (".partial", ".replaced")}
    assert not left


def test_a_url_that_exists() -> None:
    place = "memory://out.zarr"
    succeeds(*INFER, place)
    assert "out.zarr: exists; give --overwrite to" in refused(*INFER, place)
    succeeds(*INFER, place, "--overwrite", "--roi", "1:5,4:10,6:9")
    assert open_volume(place).size == (4, 6, 3)
    files = fsspec.filesystem("memory")
    files.pipe_file("/other.zarr/thesis.tex", b"precious")
    said = refused(*INFER, "memory://other.zarr", "--overwrite")
    assert "is a folder of something else, and is not deleted; name another" in said
    assert files.cat_file("/other.zarr/thesis.tex") == b"precious"


def test_a_failure_leaves_the_output_that_it_should_replace() -> None:
    succeeds(*INFER, "out.zarr")
    output = begun("out.zarr", overwrite=True)
    write(output, FIRST, 1)
    output.abandon()
    assert open_volume("out.zarr").size == OUTPUT[1:]


def test_the_input_as_output() -> None:
    zarr.create_array("memory://in.zarr/raw", data=voxels())
    run = ("infer", "memory://in.zarr/raw", "--net", "tiny.yaml", "--overwrite", "--out")
    assert "memory://in.zarr: is the input" in refused(*run, "memory://in.zarr")
    succeeds(*INFER, "in.zarr")
    for source in ("in.zarr", "in.zarr/0", "in.zarr:/0", f"file://{Path.cwd()}/in.zarr"):
        run = ("infer", source, "--net", "tiny.yaml", "--overwrite", "--out")
        assert "in.zarr: is the input" in refused_before_maps(*run, "in.zarr")
    Path("in.zarr").rename("kept.zarr.partial")
    run = ("infer", "kept.zarr.partial", "--net", "tiny.yaml", "--out", "kept.zarr")
    assert "kept.zarr.partial: is the input" in refused_before_maps(*run)


def refused_before_maps(*arguments: object) -> str:
    """Return the error of a run whose network takes two maps, as many as an output of it has."""
    text = Path("tiny.yaml").read_text().replace("weights: tiny.npz\n", "in_features: 2\n")
    Path("tiny.yaml").write_text(text)
    return refused(*arguments, "--random-weights", 1)


def test_a_url_whose_library_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    said = refused(*INFER, "s3://bucket/out.zarr")
    assert said.endswith("Install s3fs to access S3; pip install it")


def test_a_url_of_which_a_part_cannot_be_read() -> None:
    group = zarr.create_group("memory://in.zarr")
    group.create_array("raw", data=voxels())
    fsspec.filesystem("memory").pipe_file("/in.zarr/raw/c/0/0/0", b"something else")
    run = ("infer", "memory://in.zarr", "--net", "tiny.yaml", "--out", "out.h5")
    said = refused(*run, code=4)
    assert "memory://in.zarr:/raw: cannot be read at " in said
    assert "; check the data, the network, and that the server sends parts of files" in said


@pytest.mark.parametrize("place", PLACES)
def test_a_store_that_fails(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = begun(place)
    write(output, FIRST, 1)

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    async def fail(*_arguments: Any, **_options: Any) -> None:
        refuse()

    for store in (zarr.storage.LocalStore, zarr.storage.FsspecStore):
        monkeypatch.setattr(store, "set", fail)
    for folder in (PartialFolder, RemoteFolder):
        monkeypatch.setattr(folder, "put", refuse)
    said = rf"{as_written(place)}: cannot be written: No space left on device; make room"
    for act in (lambda: write(output, SECOND, 2), lambda: output.finish({"seconds": 1.0})):
        with pytest.raises(RunFailed, match=said):
            act()
    assert "1 finished block" in output.abandon()
    assert exists(f"{place}.partial")
    check_no_whole_image(place)
