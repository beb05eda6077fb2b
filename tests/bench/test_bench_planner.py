"""The benchmarks of the planner: searches, and ways to share memory out."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import MACHINES, ROOT
from quick_benchmarks import NETWORK, QUICK
from slots import slots
from typer.testing import CliRunner

from bench import sweeps
from bench.__main__ import app
from bench.layers import layer
from bench.paper.micro_batches import compare_divisions
from bench.paper.published import published
from bench.paper.shares import SHARES, compare_shares
from bench.paper.strategies import STRATEGIES, compare_strategies, plan_on, run_planned
from bench.paper.whole_jobs import run_whole, with_places
from bench.patches import plan_for
from bench.record import Row, load, save
from bench.search import time_search
from bench.search_compared import compared
from bench.table import table
from bench.unet_networks import UNETS
from planner.choices import Slot, fastest_within
from planner.cost_model import BUILT_IN
from znni.core.errors import InvalidInput, RunFailed
from znni.core.processors import DeviceKind
from znni.core.shapes import Shape5, Vec3
from znni.inference.planning import SearchOptions, search
from znni.machine.machine import Machine
from znni.network.network_file import load_network
from znni.primitives.catalogue import catalogue

NETWORKS = MACHINES.parent / "networks"
DEVICES: tuple[DeviceKind, ...] = ("cpu", "gpu")


@given(slots(), st.integers(0, 50))
def test_no_simpler_way_beats_the_joint_one_or_takes_more_than_there_is(
    made: list[Slot], allowed: int
) -> None:
    joint = fastest_within(made, allowed, inf)
    for choose in SHARES.values():
        for found in choose(made, allowed, inf):
            assert joint
            assert joint.seconds <= found.seconds
            assert found.resident + found.peak <= allowed
            assert all(it.seconds < found.seconds for it in choose(made, allowed, found.seconds))
    assert bool(SHARES["first come"](made, allowed, inf)) == bool(joint)


@pytest.mark.slow
def test_searches_are_timed_here_and_for_other_machines() -> None:
    def row(**options: Unpack[SearchOptions]) -> Row:
        return time_search(search(NETWORK, (24, 24, 24), device="cpu", costs="built-in", **options))

    here = row(ram=1 << 30, micro_batches="none")
    there = row(machine=MACHINES / "e7.yaml")
    assert here["limit_gib"] == 1
    assert there["threads"] == 72
    for one in (here, there):
        assert one["seconds"] > 0
        assert one["calls"] > 0
        assert one["declared_gib"] <= one["limit_gib"]
    assert "skipped" in row(ram=1 << 20, micro_batches="none")
    assert len(table("search", [here, there]).splitlines()) == 4


@pytest.mark.slow
def test_what_a_machine_is_planned_to_do_stands_beside_what_was_published() -> None:
    paper = load_network(NETWORKS / "n337.yaml")
    rows = [plan_on(paper, 192, MACHINES / "titanx-e7.yaml", kind, "built-in") for kind in DEVICES]
    assert [row["published_voxels_per_s"] for row in rows] == [262_131, 671_782]
    assert "conv7 fft_tiled" in rows[0]["layers"]
    assert "conv1 gpu_" in rows[1]["layers"]
    assert rows[1]["declared_gib"] <= 12
    assert "skipped" not in plan_on(NETWORK, 32, None, "cpu", "built-in")
    narrow = plan_on(NETWORK, 32, None, "cpu", "built-in", ["FFT of whole images"])
    convolutions = [it for it in narrow["layers"].split(", ") if it.startswith("conv")]
    assert all("data_parallel" in it or "task_parallel" in it for it in convolutions)
    assert narrow["primitives"] == "FFT of whole images"
    assert published("none of them", "ZNN") is None
    assert len(table("machine-plans", rows).splitlines()) == 4


@pytest.mark.slow
def test_plans_with_and_without_sweeps_tell_what_they_do_again() -> None:
    network = load_network(NETWORKS / "n926.yaml")
    found = sweeps.rows(network, 12 * 2**30, MACHINES / "h200-node.yaml", "gpu", 768, "float32")
    (row,) = found
    assert row["sweeps"]
    assert row["chosen_repeated"] < row["plain_repeated"] < 1
    assert row["chosen_seconds"] < row["plain_seconds"]
    assert len(table("sweeps", [row]).splitlines()) == 3
    (none,) = sweeps.rows(network, 2**28, None, "cpu", 768, "float32")
    assert "skipped" in none
    (unet,) = sweeps.rows(UNETS["unet3d"](), 2**31, MACHINES / "laptop.yaml", "cpu", 192, "float32")
    assert not unet["sweeps"]
    assert unet["chosen_repeated"] == unet["plain_repeated"] > 0


@pytest.mark.slow
def test_runs_of_a_sweep_and_of_blocks_are_compared() -> None:
    network, size = load_network(NETWORKS / "cells-unet.yaml"), Vec3(48, 32, 32)
    able = search(network, size, device="cpu", costs="built-in", border="same")
    plain = able.fastest_for(Vec3(16, 16, 32))
    swept = able.sweeping("z").fastest_for(Vec3(8, 32, 32))
    assert plain
    assert swept
    row = sweeps.compare_runs(network, plain, swept, size)
    assert row["apart"] < 1e-4
    assert row["plain_measured"] > 0 < row["chosen_measured"]
    assert row["chosen_declared_gib"] > 0 < row["chosen_peak_gib"]


@pytest.mark.slow
def test_strategies_of_the_paper_stand_beside_what_it_reached() -> None:
    there = MACHINES / "h200-node.yaml"
    paper = load_network(NETWORKS / "n337.yaml")
    rows = compare_strategies(paper, 100, there, None, 4 * 10**9, "built-in")
    assert [row["strategy"] for row in rows] == list(STRATEGIES)
    assert [row["published_voxels_per_s"] for row in rows][:3] == [262_131, 671_782, 727_103]
    host, gpu, using, both = rows
    assert (host["theta"], gpu["theta"]) == (10, 0)
    assert using["theta"] > 0
    assert 0 < both["theta"] < 10
    assert "gpu_declared_gib" not in host
    for row in (gpu, using, both):
        assert row["gpu_declared_gib"] <= row["gpu_limit_gib"]
    assert both["on_gpu"] == "none"
    assert "conv1" in using["on_gpu"]
    assert len(table("strategies", rows).splitlines()) == 6
    with pytest.raises(InvalidInput, match="strategies needs a GPU"):
        compare_strategies(paper, 100, MACHINES / "e7.yaml", None, None, "built-in")


def test_strategies_have_places_by_predicted_and_by_measured_time() -> None:
    about = {"network": "net", "volume": "9x9x9", "gpu_limit_gib": 1.0}
    times = {"CPU-only": (3.0, 2.0), "GPU-only": (1.0, 1.0), "CPU-GPU": (2.0, 3.0)}
    rows = with_places(
        [
            about | {"strategy": name, "predicted_seconds": predicted, "job_seconds": measured}
            for name, (predicted, measured) in times.items()
        ]
        + [about | {"strategy": "GPU + host RAM", "skipped": "nothing fits"}]
    )
    assert [row.get("place_predicted") for row in rows] == [3, 1, 2, None]
    assert [row.get("place") for row in rows] == [2, 1, 3, None]


def test_plans_of_strategies_are_run_where_there_is_time() -> None:
    plan = plan_for(NETWORK, 0, 20, device="cpu", ram=1 << 30, threads=1)
    planned = {"network": "tiny", "strategy": "CPU-only", "plan": plan.to_json()}
    none = {"network": "tiny", "strategy": "GPU-only", "skipped": "no GPU"}
    row, skipped = run_planned([planned, none], 0.0, 60.0)
    assert row["patches"] == 2
    assert row["voxels_per_s"] == pytest.approx(plan.patch.volume / row["seconds"])
    assert 0 < row["peak_gib"] < 8
    assert "plan" not in row
    assert skipped == none
    (late,) = run_planned([planned], 0.0, -1.0)
    assert late["skipped"] == "no time was left"


@pytest.mark.slow
def test_plans_of_strategies_are_run_as_whole_jobs() -> None:
    plan = plan_for(NETWORK, 0, 20, device="cpu", ram=1 << 30, threads=1)
    planned = {"network": "tiny", "strategy": "CPU-only", "plan": plan.to_json()}
    row, again = run_whole([planned, planned], 60.0)
    assert row["job_seconds"] > 0
    assert row["predicted_seconds"] == plan.seconds
    assert again == row
    (late,) = run_whole([planned], -1.0)
    assert late["skipped"] == "no time was left"


def test_rows_of_strategies_say_how_their_plans_are_made_again(tmp_path: Path) -> None:
    made, out = tmp_path / "planned.json", tmp_path / "run.json"
    save(made, "strategies", [{"network": "net", "strategy": "CPU-only", "skipped": "no plan"}], [])
    outcome = CliRunner().invoke(app, ["paper", "run-strategies", str(made), "--out", str(out)])
    assert outcome.exit_code == 0, outcome.output
    about = load(made).about
    (row,) = load(out, "strategies").rows
    assert (row["planned_by"], row["planned_at"]) == (about["command"], about["revision"])


@pytest.mark.slow
def test_shares_are_predicted_and_measured() -> None:
    family = "FFT of whole images"
    rows = compare_shares(NETWORK, 16, 1 << 30, [family], "built-in", QUICK)
    assert [row["shares"] for row in rows] == ["joint", "equal", "first come"]
    for row in rows:
        assert row["primitives"] == family
        assert row["predicted_gain"] >= 1
        assert row["seconds"] > 0
    assert rows[0]["gain"] == 1
    without = compare_shares(NETWORK, 16, 1 << 30, [], "built-in", None)
    assert not any("seconds" in row for row in without)


def test_a_batch_is_cut_to_stay_within_a_workspace(machine: Machine) -> None:
    conv, shape = layer(Vec3.of(3), 4, 4), Shape5.of(4, 4, Vec3.of(10))
    name = "fft_data_parallel"
    primitive = catalogue(machine)[name]
    limit = primitive.cost(conv, shape._replace(n=1)).memory.workspace
    assert limit < primitive.cost(conv, shape).memory.workspace
    rows = compare_divisions(machine, conv, shape, [limit], [name], BUILT_IN, QUICK)
    whole, *cut = json.loads(json.dumps(rows))
    assert whole["skipped"] == "nothing stays within the limit"
    for row in cut:
        assert row["chosen"] == f"4x1 {name}"
        assert row["seconds"] > 0
    assert len(table("micro-batches", rows).splitlines()) == 5


def test_a_limit_may_count_what_primitives_keep(machine: Machine) -> None:
    conv, shape = layer(Vec3.of(3), 4, 4), Shape5.of(4, 4, Vec3.of(10))
    keeping, keeping_nothing = names = ["fft_tiled_8", "fft_tiled_8_transient"]
    memory = catalogue(machine)[keeping].cost(conv, shape).memory
    assert memory.resident > 0

    def chosen(limit: int, *, resident: bool) -> tuple[str, str]:
        rows = compare_divisions(
            machine, conv, shape, [limit], names, BUILT_IN, QUICK, resident=resident
        )
        return rows[0].get("chosen", "none"), rows[0]["limit_on"]

    enough = memory.workspace + memory.resident
    assert chosen(memory.workspace, resident=False) == (keeping, "workspace")
    assert chosen(enough, resident=True) == (keeping, "workspace and resident")
    assert chosen(enough - 1, resident=True)[0] in {keeping_nothing, "none"}


def test_an_unknown_family_is_refused() -> None:
    asked = ["paper", "shares", "--net", "any.yaml", "--ram", "1GiB", "--family", "FFTs"]
    with pytest.raises(InvalidInput, match="--family FFTs is unknown; choose from tiled FFT, "):
        CliRunner().invoke(app, asked, catch_exceptions=False, standalone_mode=False)


@pytest.mark.slow
def test_searches_of_a_checkout_equal_themselves(tmp_path: Path) -> None:
    net = str(NETWORKS / "boundaries.yaml")
    cases = [
        {"net": net, "edge": 100, "ram": 2**30, "device": "cpu"},
        {"net": net, "edge": 64, "machine": str(MACHINES / "e7.yaml"), "device": "cpu"},
    ]
    rows = compared(cases, ROOT)
    assert [(row["planned_for"], row["slower"]) for row in rows] == [("here", 0), ("e7", 0)]
    for row in rows:
        assert row["prices_before"] == row["prices_after"] > 0
        assert row["patch_before"] == row["patch_after"]
    assert len(table("search-compared", rows).splitlines()) == 4
    with pytest.raises(RunFailed, match="ended without"):
        compared(cases, tmp_path)
