"""The real thing, end to end: dense output equals single windows, and a dilated evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from dilated import dense_dilated
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import chain, networks
from random_plans import random_volume

import znni
from bench.reference import sliding_output
from znni.core.shapes import Vec3
from znni.network.network import Network
from znni.network.weights import Float32, random_weights

CHAINS = [
    chain(("conv", 3), ("pool", 2), ("conv", 3), ("pool", 2), ("conv", 2), features=5),
    chain(("conv", 2), ("pool", 3), ("conv", (1, 3, 2)), ("pool", 3), ("conv", 1), features=3),
    chain(("pool", (1, 2, 3)), ("conv", (2, 3, 4)), ("pool", (3, 2, 1)), ("conv", 3), features=17),
]


def scaled(network: Network, volume: Float32) -> Float32:
    scaling = network.scaling
    return volume * np.float32(scaling.scale) + np.float32(scaling.offset)


@pytest.mark.slow
@settings(max_examples=40)
@given(networks(), st.tuples(*[st.integers(1, 5)] * 3), st.integers(0, 99))
def test_any_network_equals_single_windows(
    network: Network, output: tuple[int, int, int], seed: int
) -> None:
    volume, weights = random_volume(network, Vec3(*output), seed), random_weights(network, seed)
    found = znni.Inferer(network, weights, threads=2, ram=2**31)(volume)
    expected = sliding_output(network, weights, scaled(network, volume))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("network", CHAINS, ids=str)
def test_windows_of_two_three_and_mixed_equal_a_dilated_evaluation(network: Network) -> None:
    pytest.importorskip("torch", reason="the dilated evaluation is PyTorch's")
    volume, weights = random_volume(network, Vec3(19, 23, 29), 1), random_weights(network, 1)
    found = znni.Inferer(network, weights, threads=2, ram=2**31)(volume)
    expected = dense_dilated(network, weights, volume)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
