"""``python -m bench network --device gpu`` and ``profile``: the parts that need no GPU."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import get_args

import numpy as np
import pytest
from quick_benchmarks import NETWORK, PATCH, needs_torch
from typer.testing import CliRunner

from bench import network, patches
from bench.__main__ import app
from bench.accuracy import patch_input, pooled_by_fft
from bench.ceilings import GpuCeilings
from bench.network import compare_on_gpu, places
from bench.patches import plan_for
from bench.peers.best_patch import Rivals, Try, best_of, rounded
from bench.peers.torch_settings import LAYOUTS
from bench.profile import profile, time_on_gpu
from bench.reference import sliding_output
from bench.rounds import Effort
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.network.weights import random_weights
from znni.plans.plan import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_for(NETWORK, 0, PATCH.z, device="cpu", ram=2 << 30, threads=2)


@needs_torch
@pytest.mark.parametrize("values", [1, 500, 2**20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pytorchs_fragments_give_the_dense_output_in_pieces_of_any_size(
    layout: str, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.peers import torch_on_gpu
    from bench.peers.torch_on_gpu import Operators, TorchOnGpu

    monkeypatch.setattr(torch_on_gpu, "MOST_VALUES", values)
    x = patch_input(NETWORK, PATCH)
    expected = sliding_output(NETWORK, random_weights(NETWORK, 0), x)
    for operators in get_args(Operators):
        peer = TorchOnGpu(NETWORK, "fp32", layout, operators, device="cpu")
        np.testing.assert_allclose(peer(x), expected, rtol=0, atol=1e-5 * expected.max())


@needs_torch
def test_the_reference_on_a_gpu_is_the_hosts() -> None:
    from bench.peers.torch_on_gpu import reference_on_gpu

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

    extents = [Vec3.of(extent) for extent in (8, 4, 2)]
    tries, spent = best_of(LAYOUTS, extents, attempt, budget=60)
    assert [t.voxels_per_second for t in tries] == [30, 20, 10, 0]
    assert 0 <= spent < 60
    assert len(best_of(LAYOUTS, extents, attempt, budget=0)[0]) == len(LAYOUTS)


def test_patches_are_multiples_of_the_pooling_and_places_lie_in_them() -> None:
    assert rounded(NETWORK, 7) == Vec3(4, 6, 6)
    assert rounded(NETWORK, 1) == NETWORK.total_pooling
    patch = NETWORK.total_pooling * 5
    found = list(places(patch, NETWORK))
    assert len(set(found)) == len(found) > 2
    for at in found:
        assert (at + NETWORK.total_pooling).within(patch - 1)


@pytest.mark.slow
@needs_torch
def test_rows_hold_ours_and_what_each_peer_tried(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.peers import torch_on_gpu

    free = cycle((10 << 30, 7 << 30))
    monkeypatch.setattr(patches, "free_gpu_bytes", lambda: next(free))
    monkeypatch.setattr(network, "free_torch_memory", lambda: None)
    monkeypatch.setattr(network, "release_gpu_memory", lambda: None)
    monkeypatch.setattr(network, "gpu_peak_bytes", lambda work: work() or 1 << 30)
    for name in ("TorchOnGpu", "reference_on_gpu"):
        here = partial(getattr(torch_on_gpu, name), device="cpu")
        monkeypatch.setattr(torch_on_gpu, name, here)
    peers = ("torch_fp32", "torch_bf16_fused")
    rivals = Rivals(peers, (8, 4), LAYOUTS)
    ours, *theirs = compare_on_gpu(NETWORK, plan, rivals, Effort(2, 60.0))
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
    single = Rivals(peers[:1], (4,), LAYOUTS[:1])
    (short,) = compare_on_gpu(NETWORK, None, single, Effort(1, 1e-6))
    assert list(short["tried"]) == [f"{LAYOUTS[0]} 4x4x4"]
    assert short["measured"] == "head and 1 of 4 fragments"
    assert short["error"] < 1e-5
    assert "gain" not in short


@pytest.mark.slow
@needs_torch
def test_no_error_is_told_of_output_in_steps(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.peers import torch_on_gpu

    monkeypatch.setattr(patches, "free_gpu_bytes", lambda: 0)
    monkeypatch.setattr(network, "release_gpu_memory", lambda: None)
    here = partial(torch_on_gpu.reference_on_gpu, device="cpu")
    monkeypatch.setattr(torch_on_gpu, "reference_on_gpu", here)
    (row,) = compare_on_gpu(NETWORK, plan, Rivals(()), Effort(1, 60.0), "uint8")
    assert row["output"] == "uint8"
    assert "error" not in row


def test_a_profile_has_each_layer_beside_what_was_predicted(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = cycle((10 << 30, 7 << 30))
    monkeypatch.setattr(patches, "free_gpu_bytes", lambda: next(free))
    *layers, whole = profile(plan, GpuCeilings("a GPU", 1e15, 1e15), time_on_gpu(plan, 2))
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
def test_an_unknown_peer_or_layout_is_refused(option: str, known: str) -> None:
    command = ["network", "--device", "gpu", "--net", "a.yaml", option, "caffe"]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InvalidInput)
    assert f"{option} caffe is unknown; choose from {known}" in str(result.exception)
