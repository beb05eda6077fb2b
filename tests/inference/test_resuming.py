"""Tests that an interrupted run resumes where it stopped and writes the same bytes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import LONG_VOLUME, read_main, refused, znni
from fakes import Fake
from interrupted_runs import (
    OPTIONS,
    OUTPUTS,
    RUN,
    interrupt,
    resumed,
    whole,
)
from paths import SUPPORT

from bench.same_output import difference
from znni.core.errors import InvalidInput
from znni.engine.volume_runner import VolumeRunner
from znni.inference import api
from znni.plans.job_seconds import JobSeconds
from znni.plans.plan_file import save_plans
from znni.volumes import block_checks
from znni.volumes.checksums import checksum_of
from znni.volumes.locate import open_volume, read_ledger

SCRIPT = SUPPORT / "killed_runs.py"


pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives")


@pytest.mark.slow
@pytest.mark.parametrize(("out", "stride"), [("out.h5", 11), ("out.zarr", 19)])
def test_killed_at_any_step(out: str, stride: int) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, out, str(stride)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    assert len({row["blocks"] for row in rows}) > 2, "blocks were finished by then"
    assert [row for row in rows if row["difference"]] == []
    assert [row for row in rows if row["left"]] == []


@pytest.mark.parametrize(
    ("out", "options"),
    [
        ("out.h5", {}),
        ("out.zarr", {}),
        ("out.zarr", {"sharded": True, "compression": "none", "dtype": "float16"}),
    ],
)
def test_an_interrupted_run_computes_only_what_is_left(out: str, options: dict[str, Any]) -> None:
    expected = whole(out, **options)
    interrupt(out, 2, **options)
    interrupt(out, 3, **options)
    done: list[int] = []
    report = api.infer(
        "volume.h5", "tiny.yaml", out, progress=lambda now, _: done.append(now), **OPTIONS | options
    )
    assert difference(expected, Path(out)) == ""
    assert done[0] == report.finished_before > 0
    assert report.finished_before + report.voxels == open_volume(out).size.volume
    assert sorted(path.name for path in Path().glob("out.*")) == [out]


def test_progress_begins_after_a_finished_block_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rate counts from the first report, and the time that is left follows from the rate."""
    interrupt("out.h5", 2)
    order: list[str] = []
    run = VolumeRunner.run

    def noted(runner: VolumeRunner, *given: Any, **options: Any) -> JobSeconds:
        order.append("run")
        return run(runner, *given, **options)

    monkeypatch.setattr(VolumeRunner, "run", noted)
    api.infer(
        "volume.h5",
        "tiny.yaml",
        "out.h5",
        progress=lambda *_: order.append("progress"),
        **OPTIONS,
    )
    assert order[:4] == ["run", "progress", "run", "progress"]


@pytest.mark.parametrize("out", OUTPUTS)
def test_going_on_is_one_warning(
    out: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warnings() -> list[str]:
        interrupt(out)
        resumed(caplog, out)
        Path(out).rename(f"first-{out}")
        return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]

    (going_on,) = warnings()
    assert going_on.startswith("going on where an earlier run stopped")
    monkeypatch.setattr(block_checks, "LONG_CHECK", 0)  # a check of seconds is told before
    Path(f"first-{out}").rename(f"second-{out}")
    assert warnings() == [f"{out}.partial: checking 3 finished blocks of an earlier run", going_on]


@pytest.mark.parametrize("out", OUTPUTS)
def test_the_ledger_of_an_output(out: str, caplog: pytest.LogCaptureFixture) -> None:
    partial = interrupt(out, 3)
    blocks = read_ledger(str(partial)).checksums
    assert len(blocks) == 3
    resumed(caplog, out)
    found = read_ledger(out)
    assert blocks.items() <= found.checksums.items()
    volume = open_volume(out if out.endswith("zarr") else f"{out}:/main")
    assert all(checksum_of(volume.read(box)) == known for box, known in found.checksums.items())
    assert sum(box.size.volume for box in found.checksums) == volume.size.volume
    assert "the weights" in found.identity
    with pytest.raises(InvalidInput, match=r"volume\.h5: has no ledger of its blocks"):
        read_ledger("volume.h5")


def test_a_chain_has_the_identity_that_it_had_before_networks_were_graphs() -> None:
    assert read_ledger(str(interrupt("out.h5"))).identity["the network"] == "bdd2da552ae35b6d"


@pytest.mark.parametrize("out", OUTPUTS)
def test_verifying_what_is_not_finished(out: str) -> None:
    partial = interrupt(out)
    for given in (out, partial, f"{out}:/main"):
        said = refused("verify", given)
        assert said.startswith(f"{out}: is no finished output: {partial} belongs to a run")
        assert said.endswith("; the same command goes on from there")
    whole(f"other-{out}").rename(out)
    assert "agree" in znni("verify", out, "--voxels", 1).out


@pytest.mark.parametrize("out", OUTPUTS)
def test_starting_afresh_and_replacing(out: str, caplog: pytest.LogCaptureFixture) -> None:
    interrupt(out)
    outcome = znni(*RUN, "--out", out, "--no-resume")
    assert outcome.code == 0, outcome.err
    assert "finished before" not in outcome.out
    os.rename(out, "kept-" + out)  # noqa: PTH104
    interrupt(out)
    os.rename("kept-" + out, out)  # noqa: PTH104
    assert "exists; give --overwrite" in refused(*RUN, "--out", out)
    resumed(caplog, out, "--overwrite")


def test_the_plan_is_that_which_the_run_began_with() -> None:
    expected = whole("out.h5")
    interrupt("out.h5")
    begun = api.plan("tiny.yaml", LONG_VOLUME, input_itemsize=1, **OPTIONS)
    afresh = api.plan("tiny.yaml", LONG_VOLUME, ram="1GiB", threads=1)
    report = api.infer("volume.h5", "tiny.yaml", "out.h5", threads=1)
    assert report.plan.patch == begun.patch
    assert afresh.patch.z > report.plan.patch.z, "a run with more memory has larger patches"
    assert difference_of_values(expected, Path("out.h5")) == 0
    interrupt("less.h5")
    said = refused(*RUN[:-4], "--ram", "512.1MiB", "--out", "less.h5")
    assert "the plan takes " in said
    assert "the unfinished output was begun with that plan; go on with another plan by" in said
    said = refused(*RUN[:-2], "--threads", "2", "--out", "less.h5")
    assert "the plan is for 1 thread, not 2" in said
    assert said.endswith(" finished blocks; a run with these changes goes on from there")
    assert "the same command" not in said


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_other_bits_of_the_same_values_are_told(
    dtype: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupt("out.h5", dtype=dtype)
    run = Fake._reference

    def nearly(self: Fake, *arguments: Any) -> Any:
        return run(self, *arguments) * np.float32(1 + 1e-6)

    monkeypatch.setattr(Fake, "_reference", nearly)
    said = resumed(caplog, "out.h5", "--dtype", dtype)
    assert "comes out the same but for rounding" in said


def test_another_plan_may_be_given(caplog: pytest.LogCaptureFixture) -> None:
    expected = whole("out.h5")
    interrupt("out.h5")
    plan = api.plan("tiny.yaml", LONG_VOLUME, ram="513MiB", threads=1, input_itemsize=1)
    save_plans(Path("plan.json"), [plan])
    said = resumed(caplog, "out.h5", "--plan", "plan.json", ram="513MiB")
    assert "goes on with another plan than it has" in said
    assert difference_of_values(expected, Path("out.h5")) < 1e-6


def difference_of_values(one: Path, other: Path) -> float:
    return float(np.abs(read_main(one) - read_main(other)).max())


def test_a_mask_does_not_change_what_a_finished_block_is_held_to() -> None:
    """The finished block has another plan; its larger block includes voxels outside the mask."""
    mask = np.zeros(LONG_VOLUME, np.uint8)
    mask[::30, 10, 11] = 1
    plans = api.search("tiny.yaml", LONG_VOLUME, input_itemsize=1, **OPTIONS).fastest(10)
    large = max(plans, key=lambda plan: plan.patch.volume)
    small = min(plans, key=lambda plan: plan.patch.volume)
    assert small.patch.volume < large.patch.volume
    interrupt("out.h5", after=1, plan=large, mask=mask)
    api.infer("volume.h5", "tiny.yaml", "out.h5", plan=small, mask=mask, **OPTIONS)
    assert Path("out.h5").exists()
