"""Tests of the trained U-Net: its files fit together, and it finds boundaries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paths import NETWORKS

import znni
from znni.core.shapes import Vec3
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import load_weights
from znni.network.window import Window

FRESH_SEEDS = range(3000, 3005)  # used neither for training nor for scoring


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(NETWORKS / "cells-unet.yaml")


def test_output_belongs_to_every_voxel(network: Network) -> None:
    assert network.is_tiled
    assert network.alignment == Vec3(4, 4, 4)
    assert network.out_features == 1


def test_weights_are_small_and_fit(network: Network) -> None:
    assert network.weights is not None
    assert load_weights(network.weights, network).nbytes < 1_500_000


@pytest.mark.slow
def test_finds_boundaries_of_fresh_cells(network: Network) -> None:
    from scores import score

    from znni.volumes.synthetic_cells import synthetic_cells

    areas = []
    inferer = znni.Inferer(network, threads=1)
    for seed in FRESH_SEEDS:
        cells = synthetic_cells(seed, (59, 59, 59))
        output = inferer(cells.raw)
        assert output.shape == (1, 59, 59, 59)
        # The voxels at which the chain is tested, in test_boundaries.py.
        seen = (slice(17, -17, 4),) * 3
        areas.append(score(output[0][seen], cells.boundary[seen]).roc_auc)
    # The score of the full evaluation is in networks/README.md.
    assert np.mean(areas) > 0.88


@pytest.mark.parametrize("window", [None, Window(Vec3(8, 8, 8), overlap=0.5)])
def test_a_long_verification_says_how_long_it_takes(
    window: Window | None,
    network: Network,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    np.save(tmp_path / "in.npy", np.random.default_rng(1).integers(0, 255, (16, 16, 16), np.uint8))
    computed = replace(network, window=window) if window else network
    out = tmp_path / "out.h5"
    znni.infer(tmp_path / "in.npy", computed, out, threads=1)
    assert znni.verify(out, voxels=2).agrees
    assert not caplog.messages
    monkeypatch.setattr("znni.inference.verify.LONG_SECONDS", 1e-9)
    assert znni.verify(out, voxels=2).agrees
    (said,) = caplog.messages
    assert said.startswith("2 voxels take about ")
