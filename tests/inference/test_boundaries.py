"""Tests of the trained chains: their files fit together, and they find boundaries."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from paths import NETWORKS

import znni
from bench import reference
from znni.core.shapes import Vec3
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Weights, load_weights, random_weights

FRESH_SEEDS = range(3000, 3005)  # used neither for training nor for scoring


@pytest.fixture(scope="module")
def network() -> Network:
    return load_network(NETWORKS / "boundaries.yaml")


@pytest.fixture(scope="module")
def weights(network: Network) -> Weights:
    assert network.weights is not None
    return load_weights(network.weights, network)


def scaled(network: Network, raw: NDArray[np.uint8]) -> NDArray[np.float64]:
    return (raw * network.scaling.scale + network.scaling.offset)[np.newaxis]


def test_output_belongs_to_the_voxel_in_the_middle(network: Network) -> None:
    assert network.field_of_view == Vec3(35, 35, 35)  # odd extents, so there is a middle voxel
    assert network.out_features == 1


def test_demo_volume_is_the_only_dataset_and_chunked() -> None:
    with h5py.File(NETWORKS / "cells.h5") as file:
        assert list(file) == ["raw"]
        raw = file["raw"]
        assert (raw.shape, raw.dtype, raw.ndim) == ((96, 160, 160), np.uint8, 3)
        assert raw.chunks == (32, 32, 32)


@pytest.mark.slow
def test_finds_boundaries_of_fresh_cells(network: Network, weights: Weights) -> None:
    from scores import score

    from znni.volumes.synthetic_cells import synthetic_cells

    areas = []
    for seed in FRESH_SEEDS:
        cells = synthetic_cells(seed, (59, 59, 59))
        value: NDArray[np.floating] = scaled(network, cells.raw)[np.newaxis]
        for layer in network.layers:  # strided: an output for every fourth voxel along each axis
            if isinstance(layer, Conv):
                value = reference.convolution(value, layer, weights[layer.name])
            else:
                value = reference.pooling(value, layer)
        truth = cells.boundary[17:-17:4, 17:-17:4, 17:-17:4]
        areas.append(score(value[0, 0], truth).roc_auc)
    # The mean is 0.87 here, because two of the five volumes have thick sections. The score of the
    # full evaluation is in networks/README.md.
    assert np.mean(areas) > 0.85


@pytest.mark.slow
def test_n337_finds_membranes_and_organelles_of_fresh_cells() -> None:
    from scores import score

    from znni.volumes.synthetic_cells import synthetic_cells

    inferer = znni.Inferer(NETWORKS / "n337.yaml", costs="built-in", device="cpu")
    inner, membranes, organelles = (slice(42, -42),) * 3, [], []
    for seed in FRESH_SEEDS[:3:2]:
        cells = synthetic_cells(seed, (104, 112, 112))
        membrane, _, organelle = inferer(cells.raw)
        membranes.append(score(membrane, cells.boundary[inner]).roc_auc)
        organelles.append(score(organelle, cells.organelle[inner]).roc_auc)
    assert np.mean(membranes) > 0.85
    assert np.mean(organelles) > 0.85


def test_scores_of_a_ranking_known_by_hand() -> None:
    from scores import score

    # Ranking: boundary first, then one of each in a tie, then another voxel.
    found = score(np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, False, True, False]))
    assert found == pytest.approx((7 / 8, 1 / 2 + 1 / 2 * 2 / 3, 4 / 5))


ODD = Network.chain(
    "odd extents, two maps in",
    2,
    (
        Conv("first", 2, 3, Vec3(2, 3, 1), "leaky_relu"),
        Pool("second", Vec3(2, 1, 3)),
        Conv("third", 3, 4, Vec3(1, 2, 3), "elu"),
        Pool("fourth", Vec3(3, 2, 1)),
        Conv("fifth", 4, 5, Vec3(2, 1, 2), "tanh"),
        Conv("sixth", 5, 3, Vec3(1, 1, 2), "softmax"),
    ),
)


@pytest.mark.parametrize(
    "of", [load_network(NETWORKS / "boundaries.yaml"), ODD], ids=lambda of: of.name
)
def test_dilation_agrees_with_the_definition_of_dense(of: Network) -> None:
    pytest.importorskip("torch", reason="the dilated network runs in PyTorch (pip install torch)")
    from dilated import dense_dilated

    weights = random_weights(of, seed=5)
    size = of.field_of_view + Vec3(0, 1, 2)
    x = np.random.default_rng(6).standard_normal((of.in_features, *size))
    expected = reference.sliding_output(of, weights, x)
    np.testing.assert_allclose(dense_dilated(of, weights, x), expected, rtol=1e-9, atol=1e-12)
