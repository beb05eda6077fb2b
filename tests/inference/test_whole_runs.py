"""Tests of whole runs of the benchmark networks in their own process, and of their memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from paths import NETWORKS

from znni.plans.plan import Plan

GIB = 2**30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "extent", "ram"),
    [("n337", 120, 2), ("cells-unet", 160, 1)],
)
def test_peak_memory_stays_within_the_plan_and_the_limit(
    name: str, extent: int, ram: int, tmp_path: Path
) -> None:
    volume, out = tmp_path / "volume.h5", tmp_path / "out.h5"
    generator = np.random.default_rng(0)
    with h5py.File(volume, "w") as file:
        file["raw"] = generator.integers(0, 255, (extent,) * 3, dtype=np.uint8)
    command = ["infer", volume, "--net", NETWORKS / f"{name}.yaml", "--out", out]
    limits = ["--random-weights", 0, "--ram", f"{ram}GiB"]
    start = [sys.executable, "-c", "from znni.cli import main; main()"]
    process = subprocess.Popen([*start, *map(str, [*command, *limits])])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    with h5py.File(out) as file:
        plan = Plan.from_json(file["main"].attrs["plan"])
        assert np.isfinite(file["main"][()]).all()
    assert usage.ru_maxrss * 1024 <= plan.memory.total <= ram * GIB
