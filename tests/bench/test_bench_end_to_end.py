"""Whole runs, timed from outside."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import succeeds
from random_plans import twice_as_slow

import znni
from bench.end_to_end import (
    PHASES,
    Runs,
    identity,
    row_of_run,
    time_run,
    time_runs,
    with_efficiency,
)
from bench.many_volumes import time_volumes
from bench.noise_volumes import Storing, drop_from_cache, write_noise
from bench.phases import Command, _commands, time_in_turn, timed
from bench.record import Row
from bench.table import table
from znni.core.errors import RunFailed
from znni.core.shapes import Box, Vec3
from znni.network.network_file import load_network
from znni.plans.plan import Plan
from znni.volumes.locate import open_volume

SIZE = Vec3(70, 20, 23)

pytestmark = pytest.mark.usefixtures("small_case")


def runs_of(net: str) -> Runs:
    # so little memory that there are several patches
    options = ("--ram=512.4MiB", "--costs=built-in")
    return Runs([Path(net)], SIZE, [1], False, "cpu", None, options)


@pytest.mark.slow
def test_a_run_is_seen_while_it_goes_on(small_case: Path) -> None:
    ((row,),) = time_runs(runs_of("tiny.yaml"), small_case, 60)
    assert row["network"] == "tiny"
    assert row["patches"] > 2
    assert 0 < row["building_seconds"] < row["first_seconds"] < row["seconds"]
    phases = [row[f"{phase}_seconds"] for phase in (*PHASES, "finishing", "exit")]
    assert all(seconds > 0 for seconds in phases)
    assert sum(phases) == pytest.approx(row["seconds"], abs=0.05)  # starts count in hundredths
    assert row["bottleneck"] == "host layers"
    assert row["peak_gib"] <= row["declared_gib"]
    assert "gpu_peak_gib" not in row
    tables = table("end-to-end", [row, {"network": "tiny", "skipped": "no time"}]).split("\n\n")
    assert [len(each.splitlines()) for each in tables] == [4, 3, 3]
    assert all(each.splitlines()[0].count("|") <= 16 for each in tables)
    assert "no time" in tables[0]
    assert sorted(path.name for path in small_case.iterdir()) == [
        "tiny.npz",
        "tiny.yaml",
        "volume.h5",
    ]


@pytest.mark.slow
def test_what_came_after_the_first_block() -> None:
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--ram", "512.5MiB", "--device", "cpu")
    with h5py.File("volume.h5", "w") as file:
        file["raw"] = np.random.default_rng(0).integers(0, 200, SIZE, np.uint8)
    succeeds(*run, "--out", "out.h5", "--costs", "built-in")
    with h5py.File("out.h5") as file:
        told, voxels = dict(file["main"].attrs), file["main"][0].size
    told |= {"host_layers_seconds": 6.0, "reading_seconds": 3.0, "writing_seconds": 0.0}
    patches = Plan.from_json(told["plan"]).patches
    share = (patches - 1) / patches
    row = row_of_run(told, 20.0, [5.0] + [8.0] * (patches - 1), 19.5)
    assert row["predicted_seconds"] == told["predicted_seconds"]  # with the search for its plan
    assert row["predicted_seconds"] > Plan.from_json(told["plan"]).seconds
    assert row["later_seconds"] == 3
    assert row["later_voxels_per_s"] == pytest.approx(share * voxels / 3)
    assert row["busy"]["host_layers"] == pytest.approx(share * 2)
    assert row["busy"]["reading"] == pytest.approx(share)
    assert row["busy_in_words"] == f"reading {share:.0%}, host layers {2 * share:.0%}"
    for seen in ([5.0] * patches, [5.0]):  # in one look, or not all
        assert "later_seconds" not in row_of_run(told, 20.0, seen, 20.0)


def test_plans_that_compute_the_same_have_one_identity_whatever_times_are_predicted() -> None:
    """Each run refines the measurements from which the next plan's seconds follow."""
    plan = znni.plan("tiny.yaml", SIZE, ram="512.5MiB", device="cpu", costs="built-in")
    assert identity(twice_as_slow(plan)) == identity(plan)
    other_patch = replace(plan, patch=plan.patch + Vec3(1, 0, 0))
    first = replace(plan.steps[0], primitive="another")
    head = replace(plan.segments[0], steps=(first, *plan.segments[0].steps[1:]))
    other_primitive = replace(plan, segments=(head, *plan.segments[1:]))
    assert len({identity(it) for it in (plan, other_patch, other_primitive)}) == 3


@pytest.mark.slow
def test_runs_that_give_nothing_say_why(small_case: Path) -> None:
    rows = [row for (row,) in time_runs(runs_of("none.yaml"), small_case, 60)]
    assert [row["skipped"] for row in rows] == ["the run failed"]
    rows = [row for (row,) in time_runs(runs_of("tiny.yaml"), small_case, 0.0)]
    assert [row["skipped"] for row in rows] == ["no time was left"]
    row = time_run(["sleep", "60"], small_case / "out.h5", 0.1)
    assert row["skipped"] == "the run was ended after 0 s"


@pytest.mark.parametrize("storing", Storing)
def test_the_volume_is_noise_however_it_is_stored(small_case: Path, storing: Storing) -> None:
    path = small_case / f"noise{storing.ending}"
    write_noise(path, SIZE, storing)
    drop_from_cache(path)
    volume = open_volume(path)
    values = volume.read(Box(Vec3(0, 0, 0), SIZE))[0]
    assert values.shape == SIZE
    assert 100 < values.mean() < 155
    assert len(np.unique(values)) > 100
    assert (values[:6] != values[64:]).any()
    codecs = {"hdf5-gzip": "gzip", "zarr": "zstd", "tiff-deflate": "deflate"}
    assert (volume.chunks.codec if volume.chunks else None) == codecs.get(storing)


@pytest.mark.slow
def test_a_run_says_what_reading_and_writing_took(small_case: Path) -> None:
    storing = (Storing.TIFF_DEFLATE,)
    ((row,),) = time_runs(
        replace(runs_of("tiny.yaml"), nets=[], storing=storing, cold=True), small_case, 60
    )
    assert (row["network"], row["storing"], row["cold"]) == ("small", "tiff-deflate", True)
    for stage in ("reading", "writing"):
        measured, predicted = row[f"{stage}_seconds"], row[f"predicted_{stage}_seconds"]
        assert min(measured, predicted) > 0
        assert row[f"{stage}_off"] == pytest.approx(measured / predicted - 1)


def test_what_each_gpu_gives_beside_the_fewest() -> None:
    two = {"gpus": 2, "voxels_per_s": 30.0, "later_voxels_per_s": 40.0}
    six = {"gpus": 6, "voxels_per_s": 45.0, "later_voxels_per_s": 120.0}
    assert with_efficiency(dict(two), two) == two
    found = with_efficiency(six, two)
    assert found["efficiency"] == 0.5
    assert found["later_efficiency"] == 1


def test_commands_take_turns_and_warm_caches_are_timed() -> None:
    took, order = iter([9.0, 9.0, 1.0, 4.0, 3.0, 8.0]), list[str]()

    def run(name: str) -> Row:
        order.append(name)
        return {"seconds": next(took), "start_seconds": 0.5}

    commands = [Command({"command": name}, partial(run, name)) for name in ("one", "two")]
    one, two = time_in_turn(commands, 2)
    assert order == ["one", "two"] * 3
    assert (one["seconds"], two["seconds"], one["rounds"]) == (2.0, 6.0, 2)
    assert one["start_seconds"] == 0.5
    assert len(table("phases", [one, two]).splitlines()) == 4


@pytest.mark.slow
def test_the_least_that_commands_may_take_is_timed_beside_them(small_case: Path) -> None:
    first, *_, last = _commands([], "9,9,9", "1GiB", "cpu", demo=True, folder=small_case)
    assert first.about == {"command": "python"}
    assert last.about["command"] == "infer"
    commands = _commands([], "9,9,9", "1GiB", "cpu", demo=True, folder=small_case)
    alone, options, runs = (it.run() for it in islice(commands, 3))
    worked = [row["processor_seconds"] for row in (alone, options, runs)]
    assert 0 < worked[0] < worked[1] < worked[2]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".tif", ".h5"])
def test_volumes_in_a_loop_take_more_than_their_layers(ending: str) -> None:
    row = time_volumes(load_network("tiny.yaml"), 20, 2, ending, "600MiB")
    assert row["volumes"] == 2
    assert 0 < row["layers_ms"] < row["ms"]
    assert row["overhead_ms"] == pytest.approx(row["ms"] - row["layers_ms"])
    assert len(table("many-volumes", [row]).splitlines()) == 3


def test_a_command_that_fails_ends_the_table() -> None:
    failing = [sys.executable, "-c", "import sys; print('why'); sys.exit(3)"]
    with pytest.raises(RunFailed, match="ended with 3: why"):
        timed(failing, dict(os.environ))
    skipped = Command({"command": "infer"}, lambda: {"skipped": "the run failed"})
    with pytest.raises(RunFailed, match="the run failed"):
        time_in_turn([skipped], 1)
