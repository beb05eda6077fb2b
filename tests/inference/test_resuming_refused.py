"""Tests that a run refuses another run's unfinished output, and the error names the difference."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import pytest
from command_line import LONG_VOLUME, refused, rewrite, voxels, write_volume, znni
from interrupted_runs import OUTPUTS, RUN, interrupt

from znni.volumes.locate import read_ledger

pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives")


change_network = partial(rewrite, "tiny.yaml", "relu", "tanh")
change_scaling = partial(rewrite, "tiny.yaml", "0.01", "0.02")


def change_input() -> None:
    times = Path("volume.h5").stat()
    write_volume(voxels(LONG_VOLUME) + 1)
    os.utime("volume.h5", ns=(times.st_atime_ns, times.st_mtime_ns))


def change_time() -> None:
    os.utime("volume.h5", ns=(10**18, 10**18 + 1))


@pytest.mark.slow_cases
@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize(
    ("change", "options", "named"),
    [
        (None, ("--random-weights", "1"), r"the weights \(then: [0-9a-f]{16}; now: [0-9a-f]{16}\)"),
        (change_network, (), "the network"),
        (change_scaling, (), r"the scaling of the input \(then: value \* 0.01 \+ -1.0; now: value"),
        (change_input, (), "the input's values"),
        (
            change_time,
            (),
            r"the input's time of change \(then: .*; now: 2001-09-09 01:46:40.000000001 U",
        ),
        (None, ("--border", "same"), r"the border \(then: valid; now: same, reflect\)"),
        (None, ("--dtype", "uint8"), r"the type of the output \(then: float32; now: uint8\)"),
        (
            None,
            ("--roi", ":100,:,:"),
            r"the region \(then: 0:139,2:17,3:19; now: 0:100,2:17,3:19\)",
        ),
    ],
)
def test_another_run_is_not_mixed_with(
    out: str, change: Any, options: tuple[str, ...], named: str
) -> None:
    partial = interrupt(out)
    if change:
        change()
    said = refused(*RUN, "--out", out, *options)
    assert said.startswith(f"{partial}: holds 3 finished blocks of another run, which differs in")
    assert re.search(named, said), said
    again = "--no-resume or --overwrite to start afresh"
    assert f"; give what that run was given to go on with it, {again}, or write" in said
    assert len(read_ledger(str(partial)).checksums) == 3
    outcome = znni(*RUN, "--out", out, *options, "--overwrite")
    assert outcome.code == 0, outcome.err
    assert "finished before" not in outcome.out


def test_another_dataset_of_the_same_file_is_another_input() -> None:
    with h5py.File("both.h5", "w") as file:
        file["one"], file["other"] = voxels(LONG_VOLUME), voxels(LONG_VOLUME) + 1
    run = ("infer", "both.h5", *RUN[2:], "--out", "out.h5", "--dataset")
    interrupt("out.h5", source="both.h5:/one")
    assert "differs in the input's values (" in refused(*run, "other")
    assert "were finished before" in znni(*run, "one").out


def test_a_change_that_no_sample_sees_is_found_by_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.fingerprint.SAMPLES", 0)
    monkeypatch.setattr("znni.volumes.fingerprint.OF_FILE", 0)
    partial = interrupt("out.h5")
    change_input()
    said = refused(*RUN, "--out", "out.h5")
    assert re.match(r"the finished block \d+:\d+,0:15,0:16 comes out differently now, by ", said)
    assert "--no-resume to start afresh" in said
    assert len(read_ledger(str(partial)).checksums) == 3


@pytest.mark.parametrize("change", ["region", "field of view"])
def test_only_what_differs_is_named(change: str) -> None:
    """The input is then sampled at other places, but it is the same and must not be named."""
    interrupt("out.h5")
    options = ("--roi", ":100,3:,:") if change == "region" else ()
    if change == "field of view":
        rewrite("tiny.yaml", "[1, 2, 3]", "[1, 3, 3]")
    said = refused(*RUN, "--out", "out.h5", *options, "--random-weights", "1")
    named = [part.split(" (")[0] for part in said.split("which differs ")[1].split("; in ")]
    network = ["in the weights", "the network", "the region"]
    assert named == (network if change == "field of view" else ["in the weights", "the region"])


@pytest.mark.parametrize("out", OUTPUTS)
def test_a_mended_input_is_another_one(out: str) -> None:
    values = voxels(LONG_VOLUME).astype("float32")
    values[130, 10, 11] = float("nan")
    write_volume(values)
    said = refused(*RUN, "--out", out)
    assert "the volume holds nan at voxel z=130, y=10, x=11; " in said
    assert " finished blocks; with the input mended, start afresh by --no-resume" in said
    values[130, 10, 11] = 0
    write_volume(values)
    assert "of another run, which differs in the input's " in refused(*RUN, "--out", out)
    assert znni(*RUN, "--out", out, "--no-resume").code == 0
