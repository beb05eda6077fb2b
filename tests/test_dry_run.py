"""What a run would do, told without touching what there is of its output."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import refused, succeeds
from interrupted_runs import OUTPUTS, RUN, SHAPE, interrupt, prepare

DRY = (*RUN, "--dry-run", "--out")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepare(tmp_path, monkeypatch)


def test_a_plan_that_is_given_is_of_this_run() -> None:
    to_plan = ("plan", "--net", "tiny.yaml", *RUN[-4:], "--volume", "400,90,80")
    assert " to cover 399x85x73" in succeeds(*to_plan, "--out", "plan.json")
    shown = succeeds(*DRY, "out.h5", "--plan", "plan.json", "--roi", ":100,:,:")
    assert " to cover 100x15x16" in shown
    assert "finished" not in shown


@pytest.mark.parametrize("out", OUTPUTS)
def test_what_an_earlier_run_has_finished(out: str) -> None:
    partial = interrupt(out)
    left = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    shown = succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--dry-run", "--out", out)
    assert "finished      14,400 voxels (43%) by an earlier run, with which this one go" in shown
    assert re.search(r"patch +20x", shown), "the plan is that of the earlier run"
    assert "finished" not in succeeds(*DRY, out, "--no-resume")
    shown = succeeds(*DRY, out, "--dtype", "uint8")
    refusal = f"refused now   {partial}: holds 3 finished blocks of another run, which differs in"
    assert shown.splitlines()[-1].startswith(refusal)
    assert "refused now" not in succeeds(*DRY, out, "--dtype", "uint8", "--overwrite")
    assert left == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_a_mask_that_does_not_fit() -> None:
    with h5py.File("mask.h5", "w") as file:
        file["mask"] = np.zeros((1, 2, 3), np.uint8)
        file["other"] = np.zeros(SHAPE, np.uint8)
    assert "; name one, as mask.h5:/mask" in refused(*DRY, "out.h5", "--mask", "mask.h5")
    assert "the mask has 1 map of 1x2x3" in refused(*DRY, "out.h5", "--mask", "mask.h5:/mask")
    assert "refused now" not in succeeds(*DRY, "out.h5", "--mask", "mask.h5:/other")
