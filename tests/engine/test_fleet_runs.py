"""Whole runs by workers."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import read_main, refused, succeeds
from doomed_runner import Doomed
from fleet_cases import fleet_of

import znni
from znni.core.shapes import Vec3
from znni.engine.workers.fleet import Fleet
from znni.network.weights import Weights
from znni.plans.plan import Plan
from znni.plans.stored_values import Stored


def run_in_two_processes(monkeypatch: pytest.MonkeyPatch, fate: str) -> None:
    """Let plans for the host be run like those for several GPUs."""

    def prepare(
        plan: Plan, weights: Weights, _measured: Any, stored: Stored, _waiting: None
    ) -> Fleet:
        return fleet_of(partial(Doomed, plan, weights, fate), 2, plan, stored)

    monkeypatch.setattr("znni.inference.session.prepare", prepare)


@pytest.mark.slow
@pytest.mark.usefixtures("small_case")
def test_workers_stay_for_further_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    leave = Fleet.leave

    def noted(workers: Fleet, number: int) -> None:
        left.append(number)
        leave(workers, number)

    monkeypatch.setattr(Fleet, "leave", noted)
    run_in_two_processes(monkeypatch, fate="")
    run = ("--net", "tiny.yaml", "--out", "many/", "--device", "cpu", "--ram", "1GiB")
    Path("other.h5").write_bytes(Path("volume.h5").read_bytes())
    succeeds("infer", "volume.h5", "other.h5", *run)
    assert not left
    succeeds("infer", "volume.h5", *run[:3], "one.h5", *run[4:])
    assert sorted(left) == [0, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("small_case")
def test_whole_runs_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They give the same bytes, and keep their blocks if a worker is killed."""
    search = znni.search("tiny.yaml", (7, 20, 23), device="cpu", threads=1, costs="built-in")
    plan = search.fastest_for(Vec3(2, 4, 6))
    assert plan is not None
    Path("plan.json").write_text(plan.to_json())
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json", "--out")
    succeeds(*run, "one.h5")
    whole = read_main("one.h5")
    run_in_two_processes(monkeypatch, fate="")
    assert "voxels in" in succeeds(*run, "two.h5")
    np.testing.assert_array_equal(read_main("two.h5"), whole)
    run_in_two_processes(monkeypatch, fate="killed")
    said = refused(*run, "out.h5", code=4)
    assert re.match(r"worker [12] was killed by SIGKILL, as systems do where memory runs out", said)
    assert re.search(r"out.h5.partial holds \d+ finished block", said)
    found = read_main("out.h5.partial")
    assert 0 < np.count_nonzero(found) < whole.size
    np.testing.assert_array_equal(found[found != 0], whole[found != 0])
