"""Tests of dry runs: they predict a run and do not touch its output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import fsspec
import h5py
import numpy as np
import pytest
from command_line import LONG_VOLUME, dry_run_of_refused, refused, succeeds
from interrupted_runs import OPTIONS, OUTPUTS, RUN, interrupt

import znni
from znni.inference.dry_run import rehearse
from znni.inference.request import request_for
from znni.network.network_file import load_network
from znni.plans.plan import Plan
from znni.volumes.locate import read_ledger
from znni.volumes.partial_file import PartialFile
from znni.volumes.partial_folder import PartialFolder

DRY = (*RUN, "--dry-run", "--out")

# Sets up the output's place, maybe for as long as a block runs.
State: TypeAlias = Callable[[], AbstractContextManager[None] | None]


pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives")


def test_a_plan_that_is_given_is_of_this_run() -> None:
    to_plan = ("plan", "--net", "tiny.yaml", *RUN[-4:], "--volume", "400,90,80")
    assert " to cover 399x85x73" in succeeds(*to_plan, "--out", "plan.json")
    shown = succeeds(*DRY, "out.h5", "--plan", "plan.json", "--roi", ":100,:,:")
    assert " to cover 100x15x16" in shown
    assert "finished" not in shown


@pytest.mark.parametrize("out", OUTPUTS)
def test_what_an_earlier_run_has_finished(out: str) -> None:
    unfinished = interrupt(out)
    left = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    shown = succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--dry-run", "--out", out)
    ledger = read_ledger(str(unfinished))
    voxels = sum(block.size.volume for block in ledger.checksums)
    assert f"finished      {voxels:,} voxels (" in shown
    assert "%) by an earlier run, which this one continues" in shown
    rest = (
        r"the rest takes [\d.]+ s, between [\d.]+ s and [\d.]+ s nine times of ten, as predicted$"
    )
    assert re.search(f"continues: {rest}", shown, re.MULTILINE)
    patch = Plan.from_json(ledger.plan).patch
    assert re.search(rf"patch +{patch} ", shown), "the plan is that of the earlier run"
    assert "finished" not in succeeds(*DRY, out, "--no-resume")
    shown = dry_run_of_refused(*RUN, "--out", out, "--dtype", "uint8")
    refusal = (
        f"refused now   {unfinished}: holds 3 finished blocks of another run, which differs in"
    )
    assert shown.splitlines()[-1].startswith(refusal)
    assert "refused now" not in succeeds(*DRY, out, "--dtype", "uint8", "--overwrite")
    assert left == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_blocks_outside_of_a_mask_take_no_time() -> None:
    mask = np.zeros(LONG_VOLUME, np.uint8)
    mask[: LONG_VOLUME[0] // 4] = 1
    np.save("mask.npy", mask)
    shown = succeeds(*DRY, "out.h5", "--mask", "mask.npy")
    found = re.search(r"^masked +(\d+)% of the blocks lie outside of the mask", shown, re.MULTILINE)
    assert found
    assert 50 < int(found[1]) < 80
    shown = succeeds(*DRY, "out.h5", "--mask", "mask.npy", "--roi", ":9,:,:")
    assert "masked        it reaches into every block (1), and skips none" in shown
    assert "masked" not in succeeds(*DRY, "out.h5")

    shown = rehearse(
        request_for("volume.h5", "tiny.yaml", "out.h5", mask="mask.npy", ram="512.4MiB", threads=1)
    )
    blocks = shown.plan.patches
    assert shown.outside == pytest.approx(int(found[1]) / 100, abs=0.005)
    assert shown.seconds == shown.plan.time.total(round((1 - shown.outside) * blocks))
    report = znni.infer(
        "volume.h5", "tiny.yaml", "out.h5", mask="mask.npy", ram="512.4MiB", threads=1
    )
    assert report.skipped.outside_mask == round(shown.outside * blocks)
    running = shown.plan.time.for_job(blocks - report.skipped.outside_mask).running
    assert f"{running:.1f} s" in next(
        line for line in str(report).splitlines() if "running" in line
    )


def test_compression_takes_time_and_so_do_files() -> None:
    network = load_network("tiny.yaml")

    def writing(out: str, *, sharded: bool = True, **options: Any) -> float:
        found = rehearse(
            request_for("volume.h5", network, out, threads=1, sharded=sharded, **options)
        )
        return found.plan.time.patch.writing / found.plan.patch.volume

    plain = writing("out.h5", sharded=False)
    assert writing("out.zarr", compression="none") == pytest.approx(plain)
    assert 1.5 * plain < writing("out.zarr") < writing("out.zarr", compression="gzip") / 3
    assert writing("out.zarr", compression="none", sharded=False) > 1.5 * plain  # a file a chunk
    report = znni.infer(
        "volume.h5", network, "out.zarr", compression="gzip", sharded=True, threads=1
    )
    assert report.plan.time.patch.writing / report.plan.patch.volume > 3 * 1.5 * plain


def test_files_that_are_written_from_all_blocks_take_time_at_the_end() -> None:
    network = load_network("tiny.yaml")

    def finishing(out: str, **options: Any) -> float:
        found = rehearse(request_for("volume.h5", network, out, threads=1, **options))
        return found.plan.time.around.finishing

    in_place = finishing("out.h5")
    assert finishing("out.zarr", compression="gzip") == in_place
    copied = {name: finishing(f"out.{name}") - in_place for name in ("npy", "nii", "tif", "nii.gz")}
    assert copied["npy"] == copied["nii"] == copied["tif"] > 0  # a TIFF of floats is plain
    assert copied["nii.gz"] > 4 * copied["nii"]
    deflated = finishing("out.tif", compression="gzip") - in_place
    assert 2 * copied["tif"] < deflated < copied["nii.gz"]
    bytes_only = finishing("out.tif", dtype="uint8") - in_place
    assert bytes_only == pytest.approx(deflated / 4)
    assert finishing("out.tif", dtype="uint8", compression="none") < bytes_only + in_place
    labels = finishing("out.nii.gz", labels=True) - in_place
    assert copied["nii"] / 8 < labels < copied["nii.gz"] / 8
    plan = znni.plan(network, LONG_VOLUME, threads=1)
    checked = rehearse(request_for("volume.h5", network, "out.nii.gz", plan=plan, threads=1))
    assert checked.plan.time.around.finishing - in_place == pytest.approx(copied["nii.gz"])


def test_a_mask_that_does_not_fit() -> None:
    with h5py.File("mask.h5", "w") as file:
        file["mask"] = np.zeros((1, 2, 3), np.uint8)
        file["other"] = np.zeros(LONG_VOLUME, np.uint8)
    assert "; name one, as mask.h5:/other" in refused(*DRY, "out.h5", "--mask", "mask.h5")
    assert "the mask has 1 map of 1x2x3" in refused(*DRY, "out.h5", "--mask", "mask.h5:/mask")
    assert "refused now" not in succeeds(*DRY, "out.h5", "--mask", "mask.h5:/other")


def taken(name: str) -> None:
    """Put an unrelated file at the output's place."""
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("precious")


def taken_at_url(name: str) -> None:
    """Put an unrelated file at the output's place in a store."""
    fsspec.filesystem("memory").pipe_file(name, b"precious")


def left_empty(name: str) -> None:
    """Leave the files of a run that was killed before it wrote anything."""
    if name.endswith(".h5"):
        Path(f"{name}.partial").touch()
    else:
        Path(f"{name}.partial").mkdir()


def left(name: str) -> None:
    """Leave some blocks of another run."""
    interrupt(name, dtype="uint8")


def damaged(name: str, file: str, damage: Callable[[bytes], bytes]) -> None:
    """Leave some blocks of an earlier run, and damage the file that leads to them."""
    path = interrupt(name) / file
    path.write_bytes(damage(path.read_bytes()))


def cut(stored: bytes) -> bytes:
    return stored[:1000]


def with_long_attribute(stored: bytes) -> bytes:
    """Return an HDF5 file whose attributes end past their place.

    A run that did not check them would fail only at its end, when it updates them.
    """
    length = stored.index(b"bottleneck\0") - 6
    return stored[:length] + b"\xff\xff" + stored[length + 2 :]


def longer(stored: bytes) -> bytes:
    """Return metadata of a longer array."""
    return stored.replace(b"139,", b"140,", 1)


@contextmanager
def another_run(name: str) -> Iterator[None]:
    """Let another run hold the output's place."""
    with ExitStack() as stack:
        if name.endswith(".h5"):
            stack.enter_context(PartialFile(Path(name)))
        else:
            folder = PartialFolder(name)
            folder.take(overwrite=False)
            stack.callback(folder.keep)
        yield


@contextmanager
def small_disk() -> Iterator[None]:
    """Leave almost no room on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=2**10, total=2**40))
        yield


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("out", "options", "made", "said"),
    [
        ("out.txt", (), nullcontext, "with this ending; use one of .h5, .hdf5, .mha"),
        ("volume.h5", ("--overwrite",), nullcontext, "is the input"),
        ("out.h5", ("--compression", "gzip"), nullcontext, "HDF5 takes no --compression"),
        ("out.h5", ("--sharded",), nullcontext, "HDF5 takes no --sharded"),
        ("out.h5", (), partial(taken, "out.h5"), "exists; give"),
        ("file:///HERE/out.h5", (), partial(taken, "out.h5"), "exists; give"),
        ("out.h5", ("--overwrite",), partial(taken, "out.h5/thesis.tex"), "is a folder; name"),
        ("out.h5", (), partial(taken, "out.h5.partial/thesis.tex"), "is in the way of one"),
        ("out.h5", (), partial(another_run, "out.h5"), "is in use"),
        ("out.h5", (), small_disk, "the output takes 261 KiB and the disk has 1 KiB free"),
        ("out.h5", (), partial(left, "out.h5"), "blocks of another run"),
        ("out.h5", (), partial(taken, "out.h5.partial"), "without the ledger"),
        ("out.h5", (), partial(damaged, "out.h5", "", cut), "as HDF5 cannot read it: "),
        ("out.h5", (), partial(damaged, "out.h5", "", with_long_attribute), "read it: Error iter"),
        ("none/out.h5", (), nullcontext, "there is no folder"),
        ("/proc/out.h5", (), nullcontext, "/proc is no place for files; write elsewhere"),
        ("volume.h5/out.h5", (), nullcontext, "there is no folder volume.h5; make it first"),
        ("x" * 260 + ".h5", (), nullcontext, "File name too long; write elsewhere"),
        ("x" * 240 + ".h5", (), nullcontext, "File name too long; write elsewhere"),
        ("out.zarr", (), partial(taken, "out.zarr/thesis.tex"), "exists; give"),
        ("out.zarr", ("--overwrite",), partial(taken, "out.zarr/thesis.tex"), "of something else"),
        ("out.zarr", (), partial(taken, "out.zarr.partial"), "is in the way of one"),
        ("out.zarr", (), partial(another_run, "out.zarr"), "is in use"),
        ("out.zarr", ("--compression", "none"), small_disk, "261 KiB and the disk has 1 KiB free"),
        ("out.zarr", (), partial(left, "out.zarr"), "blocks of another run"),
        ("out.zarr", (), partial(damaged, "out.zarr", "0/zarr.json", cut), "be continued: "),
        ("out.zarr", (), partial(damaged, "out.zarr", "0/zarr.json", longer), "(2, 140, 15, 16)"),
        ("none/out.zarr", (), nullcontext, "there is no folder"),
        ("/proc/out.zarr", (), nullcontext, "/proc is no place for files; write elsewhere"),
        ("volume.h5/out.zarr", (), nullcontext, "there is no folder volume.h5; make it first"),
        ("x" * 240 + ".zarr", (), nullcontext, "File name too long; write elsewhere"),
        ("nonesuch://out.zarr", (), nullcontext, "Protocol not known: nonesuch"),
        ("memory://out.zarr", (), partial(taken_at_url, "/out.zarr/zarr.json"), "exists; give"),
        ("memory://out.zarr", (), partial(taken_at_url, "/out.zarr.partial"), "another run"),
        (
            "memory://o.zarr",
            ("--overwrite",),
            partial(taken_at_url, "/o.zarr/a.tex"),
            "of something else",
        ),
    ],
)
@pytest.mark.usefixtures("memory_files")
def test_it_says_what_the_run_says(
    out: str, options: tuple[str, ...], made: State, said: str
) -> None:
    out = out.replace("/HERE", str(Path.cwd()))
    with made() or nullcontext():
        before = everything()
        shown = dry_run_of_refused(*RUN, "--out", out, *options).splitlines()
        assert everything() == before
        refusal = refused(*RUN, "--out", out, *options)
        assert everything() == before
    assert said in refusal
    assert [line for line in shown if line.startswith("refused")] == [f"refused now   {refusal}"]


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("out", "options", "made"),
    [
        ("out.h5", (), nullcontext),
        ("out.h5", ("--overwrite",), partial(taken, "out.h5")),
        ("out.h5", ("--overwrite",), partial(taken, "out.h5.partial")),
        ("out.h5", ("--no-resume",), partial(left, "out.h5")),
        ("out.h5", ("--no-resume",), partial(damaged, "out.h5", "", cut)),
        ("out.h5", ("--no-resume",), partial(damaged, "out.h5", "", with_long_attribute)),
        ("out.zarr", ("--no-resume",), partial(damaged, "out.zarr", "0/zarr.json", cut)),
        ("out.zarr", ("--no-resume",), partial(damaged, "out.zarr", "0/zarr.json", longer)),
        ("out.zarr", ("--overwrite",), partial(taken, "out.zarr")),
        ("out.zarr", (), partial(left_empty, "out.zarr")),
        ("out.h5", (), partial(left_empty, "out.h5")),
        ("memory://out.zarr", ("--overwrite",), partial(taken_at_url, "/out.zarr/zarr.json")),
        ("memory://out.zarr", ("--overwrite",), partial(taken_at_url, "/out.zarr.partial")),
    ],
)
@pytest.mark.usefixtures("memory_files")
def test_it_refuses_nothing_that_runs(out: str, options: tuple[str, ...], made: State) -> None:
    with made() or nullcontext():
        before = everything()
        assert "refused" not in succeeds(*DRY, out, "--roi", ":9,:,:", *options)
        assert everything() == before
        succeeds(*RUN, "--out", out, "--roi", ":9,:,:", *options)


def everything() -> dict[str, bytes | None]:
    """Return all files in this folder and in the store."""
    files = {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}
    store = fsspec.filesystem("memory")
    return files | {path: store.cat_file(path) for path in store.find("/")}


def test_weights_that_are_missing_keep_nothing_else_back() -> None:
    interrupt("out.h5")
    Path("tiny.npz").unlink()
    shown = dry_run_of_refused(*RUN, "--out", "out.h5")
    missing = "refused now   network tiny names the weights tiny.npz, and there is no "
    assert shown.splitlines()[-1].startswith(missing)
    assert shown.count("refused") == 1
    shown = dry_run_of_refused(*RUN, "--out", "out.txt").splitlines()
    assert shown[-2].startswith(missing)
    assert shown[-1].startswith("refused now   out.txt: ")


def test_the_call_of_python_predicts_the_rest_of_a_run() -> None:
    interrupt("out.zarr", after=2)
    found = znni.dry_run("volume.h5", "tiny.yaml", "out.zarr", **OPTIONS)
    assert 0 < found.finished < found.voxels
    assert not found.obstacles
    assert found.memory == found.plan.memory.total
    Path("taken.h5").write_bytes(b"")
    (refusal,) = znni.dry_run("volume.h5", "tiny.yaml", "taken.h5", **OPTIONS).obstacles
    assert "exists; give overwrite=True" in str(refusal)
    with pytest.raises(TypeError, match=r"Did you mean 'overwrite'\?"):
        znni.dry_run("volume.h5", "tiny.yaml", "out.zarr", overwite=True)  # type: ignore[call-arg]


def test_an_unfinished_zarr_can_be_looked_at() -> None:
    interrupt("out.zarr", after=2)
    whole = znni.LazyArray(Path("out.zarr.partial"))
    first = read_ledger("out.zarr.partial").history[0][0]
    znni.infer("volume.h5", "tiny.yaml", "alone.zarr", **OPTIONS)
    expected = znni.LazyArray("alone.zarr")
    assert whole.shape == expected.shape
    part = (slice(None), *first.slices)
    np.testing.assert_array_equal(whole[part], expected[part])
    assert not whole[:, -1, -1, -1].any()
