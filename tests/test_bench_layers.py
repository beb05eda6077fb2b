"""The comparison of primitives on one layer, and of the planner's choice among them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from quick_benchmarks import CEILINGS, QUICK, needs_torch

from bench.ceilings import Ceilings
from bench.choices import judge_choices
from bench.layers import Effort, check_primitives, compare_layer, layer
from bench.table import table
from znni.errors import InvalidInput
from znni.machine import Machine
from znni.shapes import Shape5, Vec3


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
