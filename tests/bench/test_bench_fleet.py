"""Runs by workers that rest."""

from __future__ import annotations

from pathlib import Path

import pytest

import znni
from bench.fleet import NETWORK, run_rested
from bench.noise_volumes import write_noise
from bench.table import table
from znni.core.shapes import Vec3


@pytest.mark.slow
@pytest.mark.parametrize("stacks", [False, True])
def test_seconds_beyond_those_that_workers_rest(stacks: bool, tmp_path: Path) -> None:
    size = NETWORK.field_of_view + Vec3(39, 19, 19)
    write_noise(tmp_path / "volume.h5", size)
    search = znni.search(NETWORK, size, device="cpu", costs="built-in", dtype="uint8")
    plan = search.fastest_for(Vec3(10, 20, 20))
    assert plan is not None
    row, *functions = run_rested(tmp_path / "volume.h5", plan, 2, 0.1, stacks=stacks)
    assert row["patches"] == 4
    assert row["beyond_seconds"] == pytest.approx(row["seconds"] - 0.2)
    assert row["running_beyond_seconds"] == pytest.approx(row["running_seconds"] - 0.2)
    assert row["running_beyond_seconds"] < row["beyond_seconds"]
    assert bool(functions) is stacks
    assert len(table("fleet", [row, *functions]).splitlines()) == 3 + len(functions)
