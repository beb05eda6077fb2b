"""Tests of whole runs of the benchmark networks in their own process, and of their memory."""

from __future__ import annotations

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
    # What the system tells of a child's peak includes that of the process which started it.
    peak = "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    start = [sys.executable, "-c", f"from znni.cli import main; main(); {peak}"]
    done = subprocess.run(
        [*start, *map(str, [*command, *limits])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    most = 1024 * int(done.stdout.split()[-1])
    with h5py.File(out) as file:
        plan = Plan.from_json(file["main"].attrs["plan"])
        assert np.isfinite(file["main"][()]).all()
    assert most <= plan.memory.total <= ram * GIB
