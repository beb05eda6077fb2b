"""``python -m bench gpu-networks``: what can be told of it without a GPU."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import get_args

import numpy as np
import pytest
from quick_benchmarks import NETWORK, PATCH, needs_torch
from typer.testing import CliRunner

from bench import gpu_commands, gpu_networks, gpu_plan_patches
from bench.__main__ import app
from bench.accuracy import pooled_by_fft
from bench.gpu_ceilings import GpuCeilings
from bench.gpu_networks import Settings, Try, best_of, compare_gpu_network, places, rounded
from bench.gpu_profile import profile_on_gpu
from bench.networks import plan_for
from bench.noise import patch_input
from bench.rounds import Effort
from bench.torch_settings import LAYOUTS
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.network.weights import random_weights
from znni.plans.plan import Plan
from znni.primitives.reference import dense


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_for(NETWORK, 0, 2 << 30, 2, PATCH.z)


@needs_torch
@pytest.mark.parametrize("values", [1, 500, 2**20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pytorchs_fragments_give_the_dense_output_in_pieces_of_any_size(
    layout: str, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import gpu_torch_network
    from bench.gpu_torch_network import Operators, TorchOnGpu

    monkeypatch.setattr(gpu_torch_network, "MOST_VALUES", values)
    x = patch_input(NETWORK, PATCH)
    expected = dense(NETWORK, random_weights(NETWORK, 0), x)
    for operators in get_args(Operators):
        peer = TorchOnGpu(NETWORK, "fp32", layout, operators, device="cpu")
        np.testing.assert_allclose(peer(x), expected, rtol=0, atol=1e-5 * expected.max())


@needs_torch
def test_the_reference_on_a_gpu_is_the_hosts() -> None:
    from bench.gpu_torch_network import reference_on_gpu

    x = patch_input(NETWORK, NETWORK.total_pooling + 1)
    expected = pooled_by_fft(NETWORK, random_weights(NETWORK, 0), 2)(x)
    found = reference_on_gpu(NETWORK, "cpu")(x)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_first_patch_is_tried_in_each_layout_and_the_others_in_the_faster() -> None:
    speeds = {(LAYOUTS[0], 8): 10.0, (LAYOUTS[1], 8): 20.0, (LAYOUTS[1], 4): 30.0}

    def attempt(layout: str, patch: Vec3) -> Try:
        if patch.z == 2:
            return Try(layout, patch, None, "out of memory")
        return Try(layout, patch, patch.volume / speeds[layout, patch.z])

    patches = [Vec3.of(extent) for extent in (8, 4, 2)]
    tries, spent = best_of(LAYOUTS, patches, attempt, budget=60)
    assert [t.voxels_per_second for t in tries] == [30, 20, 10, 0]
    assert 0 <= spent < 60
    assert len(best_of(LAYOUTS, patches, attempt, budget=0)[0]) == len(LAYOUTS)


def test_patches_are_multiples_of_the_pooling_and_places_lie_in_them() -> None:
    assert rounded(NETWORK, 7) == Vec3(4, 6, 6)
    assert rounded(NETWORK, 1) == NETWORK.total_pooling
    patch = NETWORK.total_pooling * 5
    found = list(places(patch, NETWORK))
    assert len(set(found)) == len(found) > 2
    for at in found:
        assert (at + NETWORK.total_pooling).within(patch - 1)


@needs_torch
def test_rows_hold_ours_and_what_each_peer_tried(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import gpu_torch_network

    free = cycle((10 << 30, 7 << 30))
    monkeypatch.setattr(gpu_plan_patches, "free_bytes", lambda: next(free))
    monkeypatch.setattr(gpu_networks, "give_back_memory", lambda: None)
    monkeypatch.setattr(gpu_networks, "give_back_ours", lambda: None)
    monkeypatch.setattr(gpu_networks, "peak_bytes", lambda work: work() or 1 << 30)
    for name in ("TorchOnGpu", "reference_on_gpu"):
        here = partial(getattr(gpu_torch_network, name), device="cpu")
        monkeypatch.setattr(gpu_torch_network, name, here)
    peers = ("torch_fp32", "torch_bf16_fused")
    settings = Settings(peers, LAYOUTS, (8, 4))
    ours, *theirs = compare_gpu_network(NETWORK, plan, settings, Effort(2, 60.0))
    assert ours["name"] == "znni"
    assert ours["peak_gib"] == 3
    assert ours["rounds"] == 2
    assert ours["error"] < 1e-5
    assert ours["layers_seconds"] > 0
    assert [row["name"] for row in theirs] == list(peers)
    for row, error in zip(theirs, (1e-5, 0.1), strict=True):
        assert len(row["tried"]) == 3
        assert row["measured"] == "whole patch"
        assert row["error"] < error
        assert row["gain"] == pytest.approx(ours["voxels_per_s"] / row["voxels_per_s"])
    single = Settings(peers[:1], LAYOUTS[:1], (4,))
    (short,) = compare_gpu_network(NETWORK, None, single, Effort(1, 1e-6))
    assert list(short["tried"]) == [f"{LAYOUTS[0]} 4x4x4"]
    assert short["measured"] == "head and 1 of 4 fragments"
    assert short["error"] < 1e-5
    assert "gain" not in short


@needs_torch
def test_no_error_is_told_of_output_in_steps(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import gpu_torch_network

    monkeypatch.setattr(gpu_plan_patches, "free_bytes", lambda: 0)
    monkeypatch.setattr(gpu_networks, "give_back_ours", lambda: None)
    here = partial(gpu_torch_network.reference_on_gpu, device="cpu")
    monkeypatch.setattr(gpu_torch_network, "reference_on_gpu", here)
    settings = Settings((), LAYOUTS, (8,))
    (row,) = compare_gpu_network(NETWORK, plan, settings, Effort(1, 60.0), "uint8")
    assert row["output"] == "uint8"
    assert "error" not in row


def test_a_profile_has_each_layer_beside_what_was_predicted(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = cycle((10 << 30, 7 << 30))
    monkeypatch.setattr(gpu_plan_patches, "free_bytes", lambda: next(free))
    *layers, whole = profile_on_gpu(plan, GpuCeilings("a GPU", 1e15, 1e15), repeats=2)
    steps = [step for segment in plan.segments for step in segment.steps]
    assert [row["layer"] for row in layers] == [step.operation.name for step in steps]
    for row in layers:
        assert row["predicted_seconds"] == pytest.approx(row["built_in_seconds"])
        assert 0 < row["floor_seconds"] < row["seconds"] <= whole["seconds"]
    assert sum(row["share"] for row in layers) <= 1.001
    assert whole["voxels_per_s"] == pytest.approx(plan.patch.volume / whole["seconds"])
    assert whole["peak_gib"] == 3


@needs_torch
@pytest.mark.parametrize(
    ("option", "known"), [("--peer", "torch_fp32"), ("--layout", "channels_last_3d")]
)
def test_an_unknown_peer_or_layout_is_refused(
    option: str, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_commands, "machine_with_gpu", lambda: None)
    result = CliRunner().invoke(app, ["gpu-networks", "--net", "a.yaml", option, "caffe"])
    assert isinstance(result.exception, InvalidInput)
    assert f"{option} caffe is unknown; choose from {known}" in str(result.exception)
