"""``python -m bench cases``: the plans of its cases, and how labels are judged."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from quick_benchmarks import CEILINGS
from typer.testing import CliRunner

from bench.__main__ import app
from bench.peers.nnunet_cases import BY_NAME, CASES, scan_case
from bench.peers.nnunet_compare import margins
from bench.peers.nnunet_folders import dataset_of, plans_of, synthetic
from bench.record import load

FAKE_PEER = """\
import json, sys
assert sys.argv[1:3] == ["-m", "bench.peers.nnunet_compare"], sys.argv
print(json.dumps([{"scan": "case", "labels_apart": len(sys.argv[4].rsplit("/", 1)[1])}]))
"""


def test_names_of_cases_are_their_own() -> None:
    assert len(BY_NAME) == len(CASES)


def test_networks_for_a_scan_are_as_wide_as_those_of_nnunet() -> None:
    case = scan_case(117, torch=True, networks=5, window=128)
    assert (len(case.labels or ()), case.folds, case.resampling) == (117, (0, 1, 2, 3, 4), "torch")
    (stage,) = plans_of(case)["configurations"].values()
    assert stage["architecture"]["arch_kwargs"]["features_per_stage"] == [
        32,
        64,
        128,
        256,
        320,
        320,
    ]


def test_a_cascade_inherits_all_but_its_earlier_stage() -> None:
    stages = plans_of(BY_NAME["cascade"])["configurations"]
    assert stages["3d_lowres"]["next_stage"] == "3d_cascade_fullres"
    assert stages["3d_cascade_fullres"] == {
        "inherits_from": "3d_fullres",
        "previous_stage": "3d_lowres",
    }
    assert stages["3d_fullres"]["spacing"] == [1.5, 1.5, 1.5]


def test_plans_say_how_axes_and_regions_are_ordered() -> None:
    plans = plans_of(BY_NAME["transposed"])
    assert (plans["transpose_forward"], plans["transpose_backward"]) == ([2, 0, 1], [1, 2, 0])
    assert dataset_of(BY_NAME["regions-out-of-order"])["regions_class_order"] == [2, 3, 1]
    assert "regions_class_order" not in dataset_of(BY_NAME["plain"])


def test_scans_have_a_border_and_a_hole_of_zeros() -> None:
    scan = BY_NAME["plain"].scans[0]
    image = synthetic(scan, 0)
    inside = np.argwhere(image != 0)
    assert image.dtype == np.int16
    assert inside.min(0).tolist() == [2, 4, 0]
    assert (np.array(image.shape) - 1 - inside.max(0)).tolist() == [3, 1, 5]
    assert image[tuple(extent // 2 for extent in scan.extents)] == 0
    assert synthetic(replace(scan, floating=True), 0).dtype == np.float32
    assert image[3, 5, 1] != 0 == synthetic(replace(scan, cut=True), 0)[3, 5, 1]


def test_margins_are_between_the_best_two_or_from_a_threshold() -> None:
    values = np.array([[0.2, 0.9], [0.5, 0.05], [0.3, 0.05]], np.float32).reshape(3, 1, 1, 2)
    both = np.ones((1, 1, 2), bool)
    np.testing.assert_allclose(margins(values, both, regions=False), [0.2, 0.85], rtol=1e-6)
    np.testing.assert_allclose(margins(values, both, regions=True), [0.0, 0.4], rtol=1e-6)


@pytest.mark.skipif(sys.platform == "win32", reason="the peer is a script with a first line")
def test_labels_of_a_folder_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    peer, out = tmp_path / "python", tmp_path / "cases.json"
    peer.write_text(f"#!{sys.executable}\n{FAKE_PEER}")
    peer.chmod(0o755)
    for case in ("plain", "two"):
        at = tmp_path / "cases" / case
        (at / "results" / "Dataset001" / "nnUNetTrainer__nnUNetPlans__3d_fullres").mkdir(
            parents=True
        )
        for name in ("model", "expected", "expected-float32"):
            (at / name).mkdir()
    found = CliRunner().invoke(
        app,
        ["cases", "--python", str(peer), "--folder", str(tmp_path / "cases"), "--ours",
         str(tmp_path), "--case", "plain", "--case", "two", "--threads", "2", "--out", str(out)],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    rows = load(out, "cases").rows
    assert [row["name"] for row in rows] == ["plain", "two"]
    assert rows[0] == {
        "name": "plain",
        "configuration": "3d_fullres",
        "scan": "case",
        "labels_apart": len("expected-float32"),
        "apart_from_float16": len("expected"),
    }
