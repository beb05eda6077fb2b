"""The comparison of whole networks: our plan's patch, the peers and their oracle, the profile."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from quick_benchmarks import CEILINGS, NETWORK, PATCH, QUICK, in_process, needs_torch

import bench.profile
from bench.accuracy import CornerReference, corners, patch_input, pooled_by_fft
from bench.network import compare_network, rivals_for
from bench.paper.published import published_rows
from bench.patches import PlanPatch, plan_for
from bench.peers.best_patch import Rivals, missing
from bench.peers.torch_settings import LAYOUTS
from bench.profile import profile, time_on_cpu
from bench.reference import sliding_output
from bench.scaling import peer_rows, with_efficiency
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.engine.executor import Measured
from znni.engine.patch_runner import PatchRunner
from znni.inference.build_runner import prepare_alone
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.weights import Float32, Weights, random_weights
from znni.plans.plan import Plan

PLENTY = 1 << 30  # bytes

needs_monai = pytest.mark.skipif(find_spec("monai") is None, reason="MONAI is not installed")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_for(NETWORK, 0, PATCH.z, device="cpu", ram=2 << 30, threads=2)


def reference_of(weights: Weights) -> CornerReference:
    return CornerReference(NETWORK, pooled_by_fft(NETWORK, weights, 2))


def test_patches_have_the_same_voxels_where_they_overlap() -> None:
    small, large = (patch_input(NETWORK, Vec3.of(n)) for n in (2, 5))
    later = patch_input(NETWORK, Vec3.of(3), Vec3(0, 1, 2))
    np.testing.assert_array_equal(large[:, :-2, 1:-1, 2:], later)
    np.testing.assert_array_equal(
        small, large[:, : small.shape[1], : small.shape[2], :][..., : small.shape[3]]
    )
    assert (small >= 0).all()
    assert (small < 1).all()
    assert small.std() == pytest.approx(12**-0.5, rel=0.1)  # uniform


def test_the_corners_reference_is_that_of_single_windows() -> None:
    weights = random_weights(NETWORK, 0)
    expected = sliding_output(NETWORK, weights, patch_input(NETWORK, PATCH))
    reference = reference_of(weights)
    found = corners(NETWORK, expected.astype(np.float32))
    assert reference.error(found) < 1e-6
    for one in (found.first, found.last):
        assert one is not None
        assert one.shape == (2, 2, 2, 2)
        one[1, 1, 1, 1] += 1
        assert reference.error(found) > 0.1
        one[1, 1, 1, 1] -= 1
    single = corners(NETWORK, expected[:, :1, :1, :1].astype(np.float32))
    assert reference.error(single) < 1e-6


def test_our_own_patch_is_accurate(plan: Plan) -> None:
    ours = PlanPatch(plan.to_json())
    ours.seconds()
    found = ours.corners()
    assert found is not None
    assert reference_of(random_weights(NETWORK, 0)).error(found) < 1e-5


def expected_output(patch: Vec3) -> Any:
    return sliding_output(NETWORK, random_weights(NETWORK, 0), patch_input(NETWORK, patch))


def assert_equal(y: Float32, expected: Any) -> None:
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@needs_torch
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fragments_and_dilation_in_pytorch_give_the_dense_output(layout: str) -> None:
    from bench.peers.torch_dilated import TorchDilated
    from bench.peers.torch_fragments import TorchFragments

    expected = expected_output(PATCH)
    fragments = TorchFragments(NETWORK, "float32", layout, 2, PLENTY)
    for peer in (fragments, TorchDilated(NETWORK, "float32", layout, 2)):
        assert_equal(peer(patch_input(NETWORK, PATCH)), expected)


@needs_torch
def test_fragments_in_pytorch_compute_again_what_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench.peers import torch_fragments

    monkeypatch.setattr(torch_fragments, "SLAB_PLANES", 2)
    make = partial(torch_fragments.TorchFragments, NETWORK, "float32", LAYOUTS[0], 2)
    stored = make(PLENTY)
    again = make(stored.needed_bytes(PATCH) - 1)
    assert again.needed_bytes(PATCH) < stored.needed_bytes(PATCH)
    assert [peer.pieces(PATCH)[0].runs for peer in (stored, again)] == [1, 4]
    assert_equal(again(patch_input(NETWORK, PATCH)), expected_output(PATCH))
    again.prepare(PATCH, estimate=1.0, limit=0.9, room=PLENTY)
    assert again.measured == "head and 1 of 4 fragments"
    assert again.seconds() > 0


@pytest.mark.slow
@needs_torch
@needs_monai
@pytest.mark.filterwarnings("ignore")  # of what MONAI imports
def test_monais_windows_stitch_to_the_dense_output() -> None:
    from bench.peers.torch_dilated import MonaiWindows

    peer = MonaiWindows(NETWORK, "float32", LAYOUTS[0], 2)
    peer.prepare(PATCH, estimate=1.0, limit=9.0, room=1 << 30)
    volume = PATCH._replace(x=3 * PATCH.x + 1)
    assert_equal(peer(patch_input(NETWORK, volume)), expected_output(volume))


@needs_torch
def test_a_fragment_and_parts_of_layers_stand_for_a_whole_patch() -> None:
    from bench.peers.torch_fragments import TorchFragments

    peer = TorchFragments(NETWORK, "float32", LAYOUTS[0], 2, PLENTY)
    reference = reference_of(random_weights(NETWORK, 0))
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
        found = peer.corners()
        assert found is not None
        assert reference.error(found) < 1e-5
    assert peer.prepare(PATCH, 1.0, 9.0, room=100) == "each layer in part"


@needs_torch
def test_parts_are_scaled_to_all_items_and_planes() -> None:
    from bench.peers.torch_fragments import TorchFragments

    pieces = TorchFragments(NETWORK, "float32", LAYOUTS[0], 2, PLENTY).pieces(PATCH)
    last = pieces[-1]
    assert last.layer == NETWORK.layers[-1]
    assert (last.runs, last.shape.n) == (4, 4)
    assert last.runs * last.shape.n * last.planes * 4 == NETWORK.total_pooling.volume * PATCH.z
    assert last.part(1e30) == (4, last.planes)
    assert last.part(last.flops / 2) == (2, last.planes)
    assert last.part(last.flops / 8) == (1, max(1, last.planes // 2))
    assert last.part(0.0) == (1, 1)


@pytest.mark.slow
def test_a_networks_rows_hold_all_contestants_and_what_was_published(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
    rivals = Rivals(("torch_fp32", "dilated_fp32"), extents=(4,), ram=1 << 30)
    rows = {row["name"]: row for row in compare_network(plan, rivals, QUICK)}
    ours = rows["znni"]
    assert 1 <= ours["rounds"] <= QUICK.repeats  # a busy machine may leave time for one only
    assert ours["error"] < 1e-5
    assert 0 < ours["peak_gib"] < 2
    assert ours["predicted_voxels_per_s"] > 0
    if find_spec("torch"):
        assert len(rows["torch_fp32"]["tried"]) == 2  # two layouts
        assert rows["dilated_fp32"]["error"] < 1e-5
        assert rows["torch_fp32"]["ratio_to_torch"] == pytest.approx(1)
    else:
        assert "not installed" in rows["torch_fp32"]["skipped"]


@needs_torch
def test_peers_run_a_network_with_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    in_process(monkeypatch)
    rivals = Rivals(("torch_fp32",), layouts=LAYOUTS[:1], ram=PLENTY)
    rows = with_efficiency(list(peer_rows([2, 1], NETWORK, PATCH.z, rivals, QUICK)))
    assert [(row["name"], row["threads"]) for row in rows] == [("torch_fp32", 2), ("torch_fp32", 1)]
    for row in rows:
        z, y, x = map(int, row["patch"].split("x"))
        assert row["voxels_per_s"] == pytest.approx(z * y * x / row["seconds"])
        assert row["speedup"] == pytest.approx(row["voxels_per_s"] / rows[1]["voxels_per_s"])


def test_peers_that_cannot_run_have_rows_that_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.scaling.missing", lambda *_: "PyTorch has a day off")
    (row,) = peer_rows([2], NETWORK, PATCH.z, Rivals(("torch_fp32",), ram=PLENTY), QUICK)
    assert row == {
        "work": NETWORK.name, "name": "torch_fp32", "threads": 2, "skipped": "PyTorch has a day off"
    }  # fmt: skip


def test_published_numbers_are_of_the_four_networks_only() -> None:
    assert {row["name"] for row in published_rows("n337")} >= {"ZNNi CPU-only", "ZNN"}
    assert "ELEKTRONN" not in {row["name"] for row in published_rows("n537")}
    assert published_rows("tiny") == []


def test_peers_sit_out_what_they_do_not_compute() -> None:
    conv = Conv("conv1", 1, 1, Vec3(1, 1, 1), "sigmoid")
    reason = missing("torch_fp32", Network.chain("sigmoid", 1, (conv,)))
    assert reason == "PyTorch's peers have no sigmoid, which conv1 uses"


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="caffe is unknown; choose from torch_fp32"):
        rivals_for("cpu", ["caffe"], None, None, 1 << 30, None)


def test_a_profile_accounts_for_all_time(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def a_second_a_call(given: Plan, weights: Weights, note: Measured) -> PatchRunner:
        return prepare_alone(given, weights, lambda step, _: note(step, 1.0))

    ticks = SimpleNamespace(perf_counter=count(step=1000).__next__)
    monkeypatch.setattr(bench.profile, "prepare_alone", a_second_a_call)
    monkeypatch.setattr(bench.profile, "time", ticks)
    times = time_on_cpu(plan, repeats=1)
    *steps, between, total = profile(plan, CEILINGS, times)
    assert [row["layer"] for row in steps] == [layer.name for layer in NETWORK.layers]
    calls = sum(row["runs"] for row in steps)
    assert [row["seconds"] for row in steps] == [row["runs"] for row in steps]
    assert (between["seconds"], total["seconds"]) == (1000 - calls, 1000)
    assert between["share"] == pytest.approx(1 - calls / 1000)
    assert total["voxels_per_s"] == plan.patch.volume / 1000
    assert {row["threads"] for row in (*steps, between, total)} == {2}
    assert total["predicted_seconds"] == pytest.approx(plan.patch_seconds)
    of_plan = [step for segment in plan.segments for step in segment.steps]
    assert list(times.calls(plan)) == [(step, 1.0) for step in of_plan]


def test_a_profile_has_each_layer_alone_too_if_asked(plan: Plan) -> None:
    *steps, between, total = profile(plan, CEILINGS, time_on_cpu(plan, repeats=2, alone=True))
    assert "alone_seconds" not in between
    for row in (*steps, total):
        assert row["alone_seconds"] > 0
        assert row["alone_off"] > -1
