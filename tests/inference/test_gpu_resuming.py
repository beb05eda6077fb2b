"""Tests that a killed GPU run resumes where it stopped and writes the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import write_volume
from paths import NETWORKS

import znni
from bench.same_output import difference
from znni.core.plan_options import PlanOptions
from znni.core.processors import DeviceChoice
from znni.plans.plan_file import save_plans
from znni.volumes.locate import read_ledger

pytestmark = pytest.mark.gpu

NET = NETWORKS / "boundaries.yaml"
EXTENTS = (150, 160, 340)
MEMORY = PlanOptions(ram="8GiB", gpu_memory="128MiB")
AFTER = 3  # blocks before the kill
KILLED = f"""
import os, signal, sys
import znni
from znni.plans.plan_file import load_plan
from pathlib import Path

blocks = []

def count(done, wanted):
    blocks.append(done)
    if len(blocks) == {AFTER}:
        os.kill(os.getpid(), signal.SIGKILL)

plan = load_plan(Path("plan.json"))
znni.infer("volume.h5", sys.argv[1], "out.h5", plan=plan, progress=count, **{MEMORY})
"""


@pytest.mark.parametrize("device", ["gpu", "cpu+gpu"])
@pytest.mark.usefixtures("own_folder")
def test_a_killed_run_goes_on_to_the_same_bytes(device: DeviceChoice) -> None:
    write_volume(np.random.default_rng(0).integers(0, 255, EXTENTS, np.uint8))
    limits = PlanOptions(**MEMORY, device=device, costs="built-in")
    found = znni.search(NET, EXTENTS, input_itemsize=1, **limits).fastest(10)
    plan = min(found, key=lambda plan: plan.patch.volume)
    assert plan.patches > 2 * AFTER
    save_plans(Path("plan.json"), [plan])
    znni.infer("volume.h5", NET, "alone.h5", plan=plan, **MEMORY)
    command = [sys.executable, "-c", KILLED, str(NET)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    finished = read_ledger("out.h5.partial").checksums
    assert len(finished) >= AFTER
    report = znni.infer("volume.h5", NET, "out.h5", device=device)
    assert report.finished_before == sum(box.size.volume for box in finished)
    assert report.plan.device == plan.device
    assert difference(Path("alone.h5"), Path("out.h5")) == ""
