"""Plans as ``znni plan`` shows and saves them, and as a dry run shows them."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import INFER, dry_run_of_refused, read_main, refused, succeeds
from tiny_network import close, whole

from znni.plans.plan import Plan

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")


def test_a_plan_is_made_shown_saved_and_run() -> None:
    plan = ("plan", "--net", "tiny.yaml", "--volume")
    table = succeeds(*plan, "7,20,23")
    for same in ("volume.h5:/raw", "7x20x23"):
        assert succeeds(*plan, same).splitlines()[0] == table.splitlines()[0]
    for part in ("conv1", "pool1", "conv2", "peak memory", "cover 6x15x16"):
        assert part in table
    printed = succeeds(*plan, "7,20,23", "--json", "--out", "plan.json")
    assert json.loads(printed) == json.loads(Path("plan.json").read_text())
    assert Plan.from_json(printed).output == (6, 15, 16)
    succeeds(*INFER, "--plan", "plan.json")
    assert close(read_main("out.h5"), whole())
    small = succeeds(*plan, "volume.h5", "--roi", "0:2,4:9,4:9", "--out", "small.json")
    assert "2x5x5" in small
    succeeds(*INFER, "--plan", "small.json", "--overwrite")  # a plan fits any volume
    assert close(read_main("out.h5"), whole())


def test_a_dry_run_writes_nothing(small_case: Path) -> None:
    before = sorted(small_case.iterdir())
    shown = succeeds(*INFER, "--dry-run")
    assert "conv1" in shown
    assert "throughput" in shown
    assert sorted(small_case.iterdir()) == before
    succeeds("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out", "plan.json")
    assert "conv1" in succeeds(*INFER, "--dry-run", "--plan", "plan.json")


def test_a_dry_run_refuses_a_volume_of_other_maps() -> None:
    with h5py.File("rgb.h5", "w") as file:
        file["raw"] = np.zeros((3, 7, 20, 23), np.uint8)
    assert "3 maps and network tiny takes 1" in refused(
        "infer", "rgb.h5", "--net", "tiny.yaml", "--dry-run"
    )


def test_a_dry_run_says_what_would_stop_a_run() -> None:
    assert "refused now" not in succeeds(*INFER, "--dry-run")
    Path("tiny.npz").unlink()
    Path("out.h5").touch()
    shown = dry_run_of_refused(*INFER)
    assert "conv1" in shown
    missing, there = shown.splitlines()[-2:]
    assert missing.startswith("refused now   ")
    assert "tiny.npz" in missing
    assert there.startswith("refused now   out.h5: exists; give --overwrite")
    ready = ("--dry-run", "--overwrite", "--random-weights", "1")
    assert "refused now" not in succeeds(*INFER, *ready)
