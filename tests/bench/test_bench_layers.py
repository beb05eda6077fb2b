"""The comparison of primitives on one layer, and of the planner's choice among them."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest
from quick_benchmarks import CEILINGS, QUICK, clock_of_ticks, in_process, needs_torch

from bench import layers, rounds
from bench.ceilings import Ceilings
from bench.handing_out import EMPTY_ROUND, handing_out
from bench.layers import compare_layer, layer
from bench.peers import torch_layer
from bench.report import judge_choices
from bench.rounds import Effort
from bench.session import check_primitives
from bench.table import table
from planner.cost_model import CALL_SECONDS
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.nominal_time import ROUND_SECONDS


class FailingPeer:
    """In place of PyTorch, two seconds a run: one of its ways fails at once, one in round 2."""

    def __init__(self, *_: object) -> None:
        self._runs: Counter[str] = Counter()

    def seconds(self, name: str) -> float:
        self._runs[name] += 1
        if name == "torch_bf16":
            raise ValueError("not on this processor")
        if name == "torch_fp32" and self._runs[name] == 3:  # after the warm-up and round 1
            raise MemoryError("no room")
        return 2.0

    def error(self, name: str) -> float:
        if name == "torch_bf16_channels_last":
            raise ValueError("no float64")
        return 1e-7


@pytest.mark.slow
def test_a_layers_rows_hold_what_a_reader_needs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "time", clock_of_ticks())
    conv, shape = layer(Vec3.of(3), 3, 4), Shape5.of(2, 3, Vec3.of(12))
    effort = Effort(repeats=2, budget=1e3)
    rows = compare_layer(machine, conv, shape, ["direct", "fft_tiled_8"], effort, CEILINGS)
    ours = {row["name"]: row for row in rows if "declared_flops" in row}
    assert set(ours) == {"direct", "fft_tiled_8"}
    for row in ours.values():
        assert row["all_seconds"] == (1, 1)
        assert row["error"] < 1e-5
        assert row["achieved"] == row["floor_seconds"]
        assert row["voxels_per_s"] == 2 * 10**3
        assert row["gflops_direct"] == pytest.approx(2 * 10**3 * 3 * 4 * 27 * 2 / 1e9)
        assert row["threads"] == machine.host.threads
    torch = [row for row in rows if row["name"].startswith("torch")]
    assert len(torch) == 4
    if find_spec("torch"):
        assert all(row["error"] < (1e-5 if "fp32" in row["name"] else 2e-2) for row in torch)
        assert not any("peak_mib" in row for row in torch)
    else:
        assert all("not installed" in row["skipped"] for row in torch)


def test_a_peer_that_fails_keeps_what_it_measured_and_spares_the_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "time", clock_of_ticks())
    monkeypatch.setattr(torch_layer, "has_torch", lambda: True)
    monkeypatch.setattr(torch_layer, "TorchConvolution", FailingPeer)
    in_process(monkeypatch)
    conv, shape = layer(Vec3.of(3), 3, 4), Shape5.of(1, 3, Vec3.of(8))
    effort = Effort(repeats=2, budget=1e3)
    rows = compare_layer(machine, conv, shape, ["direct"], effort, CEILINGS)
    found = {row["name"]: row for row in rows}
    assert len(found) == len(rows) == 5
    assert found["direct"]["ratio_to_torch"] == 2.0
    assert found["torch_fp32"]["all_seconds"] == (2.0,)
    assert found["torch_fp32"]["error"] == 1e-7
    assert found["torch_fp32"]["measured"] == "failed later: MemoryError: no room"
    assert found["torch_fp32_channels_last"]["all_seconds"] == (2.0, 2.0)
    assert "measured" not in found["torch_fp32_channels_last"]
    assert found["torch_bf16"]["skipped"] == "ValueError: not on this processor"
    assert found["torch_bf16_channels_last"]["measured"] == "time only: ValueError: no float64"
    monkeypatch.setattr(torch_layer, "LEAST_SHARE_OF_PEAK", 0.0)  # time for one input only
    rows = compare_layer(machine, conv, shape._replace(n=8), ["direct"], effort, CEILINGS)
    notes = {row["name"]: row.get("measured") for row in rows}
    assert notes["torch_fp32_channels_last"] == "1 of 8 inputs"
    assert notes["torch_bf16_channels_last"] == "1 of 8 inputs; time only: ValueError: no float64"


def test_a_layer_may_be_compared_with_its_pooling(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
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
        compare_layer(machine, conv, shape, ["max_pooling"], QUICK, CEILINGS, peers=())


def test_what_would_not_end_in_time_is_skipped_and_says_so(machine: Machine) -> None:
    conv, shape = layer(Vec3.of(5), 64, 64), Shape5.of(1, 64, Vec3.of(64))
    rows = compare_layer(machine, conv, shape, ["direct"], Effort(1, 1e-3), CEILINGS)
    assert all("skipped" in row for row in rows)
    assert "beyond" in table("layer", rows)


@needs_torch
def test_pytorch_on_a_part_of_the_batch_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = layers.convolution_of(layer(Vec3.of(3), 2, 2))
    weights = random_weights(Network.chain("layer", 2, (conv,)), 0)[conv.name]
    peer = torch_layer.TorchConvolution(conv, weights, Shape5.of(8, 2, Vec3.of(6)), 2, 2)
    monkeypatch.setattr(torch_layer, "time", clock_of_ticks())
    assert peer.seconds("torch_fp32_channels_last") == 4.0


@pytest.mark.slow
@needs_torch
def test_pytorch_on_a_part_of_the_batch_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
    conv, shape = layer(Vec3.of(3), 16, 16), Shape5.of(8, 16, Vec3.of(16))
    slow = Ceilings(2, register_flops=2e9, sgemm_flops=1e9, copy_bandwidth=1e10)
    rows = compare_layer(machine, conv, shape, ["direct"], Effort(1, 0.5), slow)
    torch = [row for row in rows if row["name"].startswith("torch")]
    assert {row["measured"] for row in torch} == {"5 of 8 inputs"}


def test_the_regret_of_a_choice_is_that_of_the_measurements(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
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


@pytest.mark.slow
def test_of_small_images_a_task_takes_what_is_left_of_the_fastest_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "time", clock_of_ticks())
    only = ["fft_task_parallel", "max_pooling"]  # of which one convolves
    rows = {row["name"]: row for row in handing_out(2, 1, only, QUICK)}
    assert set(rows) == {"fft_task_parallel", EMPTY_ROUND}
    row = rows["fft_task_parallel"]
    assert row["fastest_ms"] == rows[EMPTY_ROUND]["fastest_ms"] == 1000
    counted = CALL_SECONDS + 3 * ROUND_SECONDS + row["computing_ms"] / 1e3
    assert row["handed_rounds"] == 3
    assert row["us_a_task"] == pytest.approx((1 - counted) / row["handed_tasks"] * 1e6)
    assert row["model_ms"] > row["computing_ms"]
    assert "us a task" in table("handing-out", list(rows.values()))
