"""The reference of tiled networks: equal to PyTorch's float64 over the whole volume."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import graphs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from znni.core.shapes import Box, Vec3
from znni.network.geometry import whole_input
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.primitives import tiled_reference

small = graphs(depth=2, most_maps=3, strides=(1, 2))
sizes = st.builds(Vec3, *[st.integers(1, 14)] * 3)


@settings(max_examples=60)
@given(graphs(), sizes, st.integers(0, 99))
def test_whole_volumes_equal_pytorch(network: Network, volume: Vec3, seed: int) -> None:
    torch = pytest.importorskip("torch", reason="the other evaluation is PyTorch's")
    from bench.peers.torch_graph import TorchGraph

    whole = whole_input(network, volume)
    x = np.random.default_rng(seed).standard_normal((network.in_features, *whole))
    weights = random_weights(network, seed)
    found = tiled_reference.output_at_once(network, weights, x)
    with torch.inference_mode():
        expected = TorchGraph(network, weights, torch.float64)(torch.from_numpy(x)[None])[0].numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=1e-10 * np.abs(expected).max() + 1e-300
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(small, st.builds(Vec3, *[st.integers(1, 2)] * 3), st.integers(0, 99))
def test_wrapped_values_are_those_far_inside_a_periodic_volume(
    network: Network, periods: Vec3, seed: int
) -> None:
    period = network.alignment * periods
    # The outermost values of the periodic volume depend on zeros, and those in its middle do not.
    whole = whole_input(network, period * 2 + network.alignment * 40)
    assume(whole.volume < 300_000)
    x = np.random.default_rng(seed).standard_normal((network.in_features, *period))
    weights = random_weights(network, seed)
    counts = whole.ceil_div(period)
    repeated = np.tile(x, (1, *counts))[:, *Box(Vec3(0, 0, 0), whole).slices]
    far = tiled_reference.output_at_once(network, weights, repeated)
    found = tiled_reference.output_at_once(network, weights, x, "wrap")
    assert Vec3(*found.shape[1:]) == period
    middle = Vec3(*far.shape[1:]) // 2 // period * period
    inside = far[:, *Box(middle, middle + period).slices]
    np.testing.assert_allclose(found, inside, rtol=0, atol=1e-10 * np.abs(inside).max() + 1e-300)
