"""The benchmarks themselves, on sizes where they take seconds: that they measure what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.accuracy import CornerReference, corner
from bench.ceilings import Ceilings, measure_ceilings
from bench.child import Child, ChildFailed
from bench.choices import judge_choices
from bench.layers import Effort, check_primitives, compare_layer, layer
from bench.network_peers import check_peers
from bench.networks import Rivals, compare_network, plan_for
from bench.noise import patch_input
from bench.plan_patch import PlanPatch
from bench.plot import plot
from bench.profile import profile
from bench.published import published_rows
from bench.record import Record, load, save
from bench.rounds import Result, run_rounds, speedups
from bench.scaling import layer_rows, network_rows, with_efficiency
from bench.table import table
from znni.errors import InvalidInput
from znni.machine import Machine
from znni.network import Conv, Network, Pool
from znni.plans import Plan
from znni.primitives.reference import dense
from znni.shapes import Shape5, Vec3
from znni.weights import Float32, random_weights

CEILINGS = Ceilings(threads=2, register_flops=2e11, sgemm_flops=1e11, copy_bandwidth=1e10)
QUICK = Effort(repeats=2, budget=5.0)
NETWORK = Network(
    "tiny",
    1,
    (
        Conv("conv1", 1, 3, Vec3(2, 3, 2), "relu"),
        Pool("pool1", Vec3(2, 1, 2)),
        Conv("conv2", 3, 4, Vec3(3, 2, 2), "relu"),
        Pool("pool2", Vec3(2, 2, 1)),
        Conv("conv3", 4, 2, Vec3(1, 2, 2), "identity"),
    ),
)
PATCH = NETWORK.total_pooling * 2

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
needs_monai = pytest.mark.skipif(find_spec("monai") is None, reason="MONAI is not installed")
needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_for(NETWORK, 0, 2 << 30, 2, PATCH.z)


def clock(*seconds: float) -> Callable[[], float]:
    """A contestant that takes these seconds, one after the other."""
    taken = iter(seconds)
    return lambda: next(taken)


# Rounds


def test_rounds_are_interleaved_and_the_warm_up_does_not_count() -> None:
    calls = []

    def contestant(name: str) -> Callable[[], float]:
        times = count()

        def run() -> float:
            calls.append(name)
            return float(next(times))

        return run

    results = run_rounds(
        {"a": contestant("a"), "b": contestant("b")}, repeats=2, budget=9.0, warm=["b"]
    )
    assert calls == ["a", "a", "b", "a", "b"]
    assert results["a"].by_round == (1.0, 2.0)
    assert results["b"].by_round == (0.0, 1.0)


def test_who_has_used_up_its_budget_sits_out_but_is_measured_once() -> None:
    results = run_rounds({"a": clock(0, 1, 1, 1)}, repeats=3, budget=-1.0)
    assert results["a"].by_round == (1, None, None)
    assert results["a"].timing.seconds == (1,)


def test_speedups_are_over_the_fastest_rival_of_the_same_round() -> None:
    ours = Result((1.0, 2.0, 4.0))
    rivals = [(Result((8.0, 4.0, None)), 10.0), (Result((4.0, 8.0, None)), 10.0)]
    found = speedups(ours, 20.0, rivals)
    assert found["ratio_to_torch"] == pytest.approx((8 + 4) / 2)
    assert (found["ratio_lowest"], found["ratio_highest"]) == (4.0, 8.0)
    assert speedups(Result((None,)), 1.0, [(Result((1.0,)), 1.0)]) == {}


# Ceilings


def test_the_floor_is_the_larger_of_arithmetic_and_traffic() -> None:
    assert CEILINGS.floor(2e11, 1e9).seconds == 1.0
    assert CEILINGS.floor(2e11, 1e9).bound == "flops"
    assert CEILINGS.floor(2e10, 1e10).seconds == 1.0
    assert CEILINGS.floor(2e10, 1e10).bound == "bytes"
    assert CEILINGS.floor(2e11, 0).share(4.0) == 0.25


def test_ceilings_are_those_of_a_processor_of_this_century() -> None:
    found = measure_ceilings(1)
    assert 1e9 < found.register_flops < 1e12
    assert 1e9 < found.sgemm_flops < 1e12
    assert 1e8 < found.copy_bandwidth < 1e12


# Processes


class Server:
    def add(self, a: int, b: int) -> int:
        return a + b

    def fail(self) -> None:
        raise ValueError("not today")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def allocate(self, nbytes: int) -> None:
        np.ones(nbytes, np.uint8)


def fails_to_start() -> None:
    raise ValueError("never")


def test_a_child_answers_reports_errors_and_may_be_killed() -> None:
    with Child(Server) as child:
        assert child.call("add", 2, 3) == 5
        before = child.peak_memory()
        child.call("allocate", 1 << 28)
        assert child.peak_memory() >= before + (1 << 27)
        with pytest.raises(ChildFailed, match="ValueError: not today"):
            child.call("fail")
    with Child(Server) as child:
        failed: dict[str, str] = {}
        run = child.stopwatch(failed, "victim", "die")
        assert run() is None
        assert "killed" in failed["victim"]
        assert run() is None
    with pytest.raises(ChildFailed, match="never"):
        Child(fails_to_start)


# Layers


def test_a_layers_rows_hold_what_a_reader_needs(machine: Machine) -> None:
    conv, shape = layer(Vec3.of(3), 3, 4), Shape5.of(2, 3, Vec3.of(12))
    rows = compare_layer(machine, conv, shape, ["direct", "fft_tiled_8"], QUICK, CEILINGS)
    ours = {row["name"]: row for row in rows if "declared_flops" in row}
    assert set(ours) == {"direct", "fft_tiled_8"}
    for row in ours.values():
        assert row["rounds"] == QUICK.repeats
        assert row["error"] < 1e-5
        assert row["floor_seconds"] / row["seconds"] == pytest.approx(row["achieved"])
        assert row["voxels_per_s"] == pytest.approx(2 * 10**3 / row["seconds"])
    torch = [row for row in rows if row["name"].startswith("torch")]
    assert len(torch) == 4
    if find_spec("torch"):
        assert all(row["error"] < (1e-5 if "fp32" in row["name"] else 2e-2) for row in torch)
        assert ours["direct"]["ratio_lowest"] <= ours["direct"]["ratio_highest"]
    else:
        assert all("not installed" in row["skipped"] for row in torch)


def test_a_layer_may_be_compared_with_its_pooling(machine: Machine) -> None:
    pooled, shape = layer(Vec3.of(3), 1, 4, 2), Shape5.of(2, 1, Vec3.of(13))
    rows = compare_layer(machine, pooled, shape, ["direct_pooled"], QUICK, CEILINGS)
    assert all(row["pool"] == "2x2x2" for row in rows)
    errors = {row["name"]: row["error"] for row in rows if "error" in row}
    assert errors["direct_pooled"] < 1e-5
    assert len(errors) == (5 if find_spec("torch") else 1)
    assert all(error < 2e-2 for error in errors.values())


def test_only_names_what_there_is_and_what_does_the_layer(machine: Machine) -> None:
    with pytest.raises(InvalidInput, match=r"--only dirct is unknown; choose from .*direct"):
        check_primitives(["direct", "dirct"], machine)
    conv, shape = layer(Vec3.of(3), 3, 4), Shape5.of(2, 3, Vec3.of(12))
    with pytest.raises(InvalidInput, match="none of --only max_pooling computes conv1"):
        compare_layer(machine, conv, shape, ["max_pooling"], QUICK, CEILINGS, peers=False)


def test_what_would_not_end_in_time_is_skipped_and_says_so(machine: Machine) -> None:
    conv, shape = layer(Vec3.of(5), 64, 64), Shape5.of(1, 64, Vec3.of(64))
    rows = compare_layer(machine, conv, shape, ["direct"], Effort(1, 1e-3), CEILINGS)
    assert all("skipped" in row for row in rows)
    assert "beyond" in table("layer", rows)


@needs_torch
def test_pytorch_on_a_part_of_the_batch_is_scaled_and_says_so(machine: Machine) -> None:
    conv, shape = layer(Vec3.of(3), 16, 16), Shape5.of(8, 16, Vec3.of(16))
    slow = Ceilings(2, register_flops=2e9, sgemm_flops=1e9, copy_bandwidth=1e10)
    rows = compare_layer(machine, conv, shape, ["direct"], Effort(1, 0.5), slow)
    torch = [row for row in rows if row["name"].startswith("torch")]
    assert {row["measured"] for row in torch} == {"5 of 8 inputs"}


def test_the_regret_of_a_choice_is_that_of_the_measurements(machine: Machine) -> None:
    conv, small = layer(Vec3.of(3), 2, 2), Shape5.of(1, 2, Vec3.of(10))
    names = ["direct", "lowered_balanced", "fft_tiled_8_bfloat16"]
    rows = []
    for shape in (small, small._replace(n=2)):
        rows += compare_layer(machine, conv, shape, names, QUICK, CEILINGS)
    found = judge_choices(rows)
    assert [row["batch"] for row in found] == [1, 2]
    for row in found:
        same = [r for r in rows if r["batch"] == row["batch"] and r["name"] in names[:2]]
        measured = {r["name"]: r["seconds"] for r in same}
        assert row["of"] == 2
        assert row["regret"] == pytest.approx(measured[row["picked"]] / min(measured.values()) - 1)
    assert "regret" in table("choices", found)


# Networks


def test_patches_of_any_extents_start_with_the_same_voxels() -> None:
    small, large = (patch_input(NETWORK, Vec3.of(n)) for n in (2, 5))
    np.testing.assert_array_equal(
        small, large[:, : small.shape[1], : small.shape[2], :][..., : small.shape[3]]
    )
    assert (small >= 0).all()
    assert (small < 1).all()
    assert small.std() == pytest.approx(12**-0.5, rel=0.1)  # uniform


def test_the_corners_reference_is_that_of_single_windows() -> None:
    weights = random_weights(NETWORK, 0)
    expected = dense(NETWORK, weights, patch_input(NETWORK, PATCH))
    reference = CornerReference(NETWORK, weights, 2)
    found = corner(NETWORK, expected.astype(np.float32))
    assert reference.error(found) < 1e-6
    found[1, 1, 1, 1] += 0.5 * np.abs(found).max()
    assert reference.error(found) > 0.1


def test_our_own_patch_is_accurate(plan: Plan) -> None:
    ours = PlanPatch(plan.to_json())
    assert ours.seconds() > 0
    found = ours.corner()
    assert found is not None
    assert CornerReference(NETWORK, random_weights(NETWORK, 0), 2).error(found) < 1e-5


def expected_output(patch: Vec3) -> Any:
    return dense(NETWORK, random_weights(NETWORK, 0), patch_input(NETWORK, patch))


def assert_equal(y: Float32, expected: Any) -> None:
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@needs_torch
def test_fragments_and_dilation_in_pytorch_give_the_dense_output() -> None:
    from bench.torch_dilated import TorchDilated
    from bench.torch_fragments import TorchFragments

    expected = expected_output(PATCH)
    for peer in (TorchFragments, TorchDilated):
        assert_equal(peer(NETWORK, "float32", 2)(patch_input(NETWORK, PATCH)), expected)


@needs_torch
@needs_monai
@pytest.mark.filterwarnings("ignore")  # of what MONAI imports
def test_monais_windows_stitch_to_the_dense_output() -> None:
    from bench.monai_window import MonaiWindows

    peer = MonaiWindows(NETWORK, "float32", 2)
    peer.prepare(PATCH, estimate=1.0, limit=9.0, room=1 << 30)
    volume = PATCH._replace(x=3 * PATCH.x + 1)
    assert_equal(peer(patch_input(NETWORK, volume)), expected_output(volume))


@needs_torch
def test_a_fragment_and_parts_of_layers_stand_for_a_whole_patch() -> None:
    from bench.torch_fragments import TorchFragments

    peer = TorchFragments(NETWORK, "float32", 2)
    reference = CornerReference(NETWORK, random_weights(NETWORK, 0), 2)
    pieces = peer.pieces(PATCH)
    flops = [piece.runs * piece.flops for piece in pieces]
    single = (flops[0] + sum(flops[1:]) / 4) / sum(flops)
    ways = {
        "whole patch": 1.01,
        "head and 1 of 4 fragments": 1.01 * single,
        "each layer in part": 0.99 * single,
    }
    for what, limit in ways.items():
        assert peer.prepare(PATCH, 1.0, limit, 1 << 30) == what
        assert peer.seconds() > 0
        found = peer.corner()
        assert found is not None
        assert reference.error(found) < 1e-5
    assert peer.prepare(PATCH, 1.0, 9.0, room=100) == "each layer in part"


@needs_torch
def test_parts_are_scaled_to_all_items_and_planes() -> None:
    from bench.torch_fragments import TorchFragments

    pieces = TorchFragments(NETWORK, "float32", 2).pieces(PATCH)
    last = pieces[-1]
    assert last.layer == NETWORK.layers[-1]
    assert (last.runs, last.shape.n) == (4, 4)
    assert last.runs * last.shape.n * last.planes * 4 == NETWORK.total_pooling.volume * PATCH.z
    assert last.part(1e30) == (4, last.planes)
    assert last.part(last.flops / 2) == (2, last.planes)
    assert last.part(last.flops / 8) == (1, max(1, last.planes // 2))
    assert last.part(0.0) == (1, 1)


def test_a_networks_rows_hold_all_contestants_and_what_was_published(plan: Plan) -> None:
    rivals = Rivals(("torch_fp32", "dilated_fp32"), ram=1 << 30, extents=(4, 8))
    rows = {row["name"]: row for row in compare_network(plan, rivals, QUICK)}
    ours = rows["znni"]
    assert ours["rounds"] == QUICK.repeats
    assert ours["error"] < 1e-5
    assert 0 < ours["peak_gib"] < 2
    assert ours["predicted_voxels_per_s"] > 0
    if find_spec("torch"):
        assert len(rows["torch_fp32"]["tried"]) == 2
        assert rows["dilated_fp32"]["error"] < 1e-5
        assert ours["ratio_lowest"] <= ours["ratio_to_torch"] <= ours["ratio_highest"]
        assert rows["torch_fp32"]["ratio_to_torch"] == pytest.approx(1)
    else:
        assert "not installed" in rows["torch_fp32"]["skipped"]


def test_published_numbers_are_of_the_four_networks_only() -> None:
    assert {row["name"] for row in published_rows("n337")} >= {"ZNNi CPU-only", "ZNN"}
    assert "ELEKTRONN" not in {row["name"] for row in published_rows("n537")}
    assert published_rows("tiny") == []


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="caffe is unknown; choose from torch_fp32"):
        check_peers(["caffe"])


def test_a_profile_accounts_for_all_time(plan: Plan) -> None:
    *steps, between, total = profile(plan, CEILINGS, repeats=1)
    assert [row["layer"] for row in steps] == [layer.name for layer in NETWORK.layers]
    assert sum(row["share"] for row in (*steps, between)) == pytest.approx(1)
    assert between["seconds"] > 0
    runs = {s.layer.name: runs for segment, runs in plan.runs() for s in segment.steps}
    assert {row["layer"]: row["runs"] for row in steps} == runs
    assert total["predicted_seconds"] == pytest.approx(plan.patch_seconds)


# Results


@cache
def measured(kind: str, machine: Machine) -> list[dict[str, Any]]:
    conv, shape = layer(Vec3.of(2), 2, 2), Shape5.of(1, 2, Vec3.of(8))
    if kind == "layer":
        return compare_layer(machine, conv, shape, ["direct"], QUICK, CEILINGS, peers=False)
    if kind == "network":
        made = [{"network": "n337", "name": "znni", "seconds": 1.0, "voxels_per_s": 1e5}]
        return made + published_rows("n337")
    ceilings = [Ceilings(threads, 2e11, 1e11, 1e10) for threads in (1, 2)]
    layers = layer_rows(ceilings, [(conv, shape)], ["direct"], QUICK)
    networks = network_rows((1, 2), NETWORK, PATCH.z, 2 << 30, QUICK)
    return with_efficiency([*layers, *networks])


@pytest.mark.parametrize("kind", ["layer", "network", "scaling"])
@needs_matplotlib
def test_results_go_through_json_to_a_table_and_a_picture(
    kind: Any, machine: Machine, tmp_path: Path
) -> None:
    rows = measured(kind, machine)
    save(tmp_path / "rows.json", kind, rows, [CEILINGS])
    record = load(tmp_path / "rows.json")
    assert record.kind == kind
    assert table(kind, record.rows) == table(kind, rows)
    assert len(table(kind, rows).splitlines()) == len(rows) + 2
    assert record.about["ceilings"][0]["sgemm_flops"] == CEILINGS.sgemm_flops
    plot(record, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_compares_with_the_fewest_threads(machine: Machine) -> None:
    rows = [row for row in measured("scaling", machine) if row["name"] in {"direct", "znni"}]
    by_threads = {(row["name"], row["threads"]): row for row in rows}
    for name in ("direct", "znni"):
        one, two = by_threads[name, 1], by_threads[name, 2]
        assert (one["speedup"], one["efficiency"]) == (1.0, 1.0)
        assert two["speedup"] == pytest.approx(two["voxels_per_s"] / one["voxels_per_s"])
        assert two["efficiency"] == pytest.approx(two["speedup"] / 2)


def test_what_lacks_a_value_has_a_dash() -> None:
    lines = table("network", [{"network": "a", "name": "b", "error": None, "skipped": "killed"}])
    assert lines.splitlines() == [
        "| network | name | note   |",
        "|---------|------|--------|",
        "| a       | b    | killed |",
    ]


def test_a_file_without_results_and_a_profiles_picture_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidInput, match="holds no results"):
        load(tmp_path / "other.json")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(tmp_path / "none.json")
    with pytest.raises(InvalidInput, match="make no picture"):
        plot(Record("profile", [], {}), tmp_path / "none.png")


def test_the_command_measures_saves_and_prints(tmp_path: Path) -> None:
    out = tmp_path / "layers.json"
    command = f"layer --kernel 2 --size 8 --features 2 --out-features 2 --no-peers --out {out}"
    run = [sys.executable, "-m", "bench"]
    root = Path(__file__).parents[1]
    printed = subprocess.run(
        [*run, *command.split(), "--only", "direct", "--repeats", "1"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "ceilings with" in printed
    again = subprocess.run(
        [*run, "table", out], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert again in printed
    chosen = subprocess.run(
        [*run, "choices", out], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert "regret" in chosen
    refused = subprocess.run(
        [*run, "table", tmp_path / "no"], cwd=root, capture_output=True, text=True, check=False
    )
    assert refused.returncode == InvalidInput.exit_code
    assert refused.stderr.startswith("bench: error: ")
