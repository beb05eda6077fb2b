"""Simulated clusters, the cost of handing out, and processes of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paths import ROOT

from bench.cluster_scaling import cluster_scaling_command
from bench.cluster_simulation import POLICIES, coordinate, hand_out, simulate
from bench.table import table


def test_the_schedule_ends_sooner_than_a_greedy_one() -> None:
    paces = [10.0, 100.0] * 20
    rows = {policy: simulate(policy, paces, 1000, 0.1) for policy in POLICIES}
    assert rows["schedule"]["efficiency"] > 0.9
    assert rows["greedy"]["efficiency"] < 0.8
    assert all(row["blocks"] == 1000 for row in rows.values())
    assert "10 s, 100 s" in table("cluster-simulation", list(rows.values()))


def test_memory_is_a_few_bytes_a_block() -> None:
    row = hand_out(20_000, 10)
    assert row["bytes_a_block"] < 20
    assert row["blocks_per_s"] == 20_000 / row["seconds"]


def test_a_coordinator_hands_out_all_blocks_and_finds_them_again() -> None:
    row = coordinate(1000, 10)
    assert row["blocks"] == 1000
    assert row["resume_seconds"] > 0
    assert "whole coordinator" in table("cluster-simulation", [row])


@pytest.mark.slow
def test_processes_of_this_machine_are_timed_and_weighed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scaling.json"
    net = ROOT / "networks/boundaries.yaml"
    cluster_scaling_command(net, [1], blocks=10, patch=16, ram=1 << 30, repeats=1, out=out)
    row, part = json.loads(out.read_text())["rows"]
    for each in (row, part):
        assert (each["workers"], each["blocks"], each["efficiency"]) == (1, 10, 1.0)
        assert each["blocks_per_s"] > each["whole_blocks_per_s"] > 0
    assert row["coordinator_ms_a_block"] > 0
    assert row["dask_mib"] > 50
    assert "100.0%" in capsys.readouterr().out
