"""Tests that verification computes the definition of the network that an output stores as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from random_networks import networks

from bench.reference import sliding_output
from znni.inference.brute_force import at_voxel
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.network_file import load_network, network_from_text
from znni.network.weights import random_weights


@given(networks())
@settings(max_examples=40)
def test_brute_force_is_the_definition(network: Network) -> None:
    weights = random_weights(network, 1)
    shape = (network.in_features, *network.field_of_view)
    window = np.random.default_rng(2).standard_normal(shape)
    found = at_voxel(network, weights, window).values
    np.testing.assert_allclose(
        found, sliding_output(network, weights, window)[:, 0, 0, 0], 1e-12, 1e-14
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("networks") / "again.yaml"


@given(network=networks())
@settings(max_examples=20)
def test_the_text_of_a_network_is_a_network_file(network: Network, file: Path) -> None:
    text = network_text(network)
    assert "\n" not in text
    assert network_from_text(text, "text") == network
    file.write_text(text)
    assert load_network(file) == network
