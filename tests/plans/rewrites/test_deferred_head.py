"""A head that is applied to the mean of windows gives what the mean of its values is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_networks import CLASSES

from znni.core.shapes import Vec3
from znni.network.geometry import with_window
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.plans.rewrites.deferred_head import alike, original, with_deferred_head
from znni.primitives.tiled_reference import local, output_at_once

WINDOW = Window(Vec3(4, 5, 6), 0.25)


def network(text: str = CLASSES) -> Network:
    return with_window(network_from_text(text, "classes.yaml"), WINDOW)


@settings(max_examples=15)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=4), st.integers(0, 99))
def test_heads_after_and_before_the_blend_give_the_same(shares: list[float], seed: int) -> None:
    net = network()
    apart, weights = with_deferred_head(net), random_weights(net, seed)
    assert isinstance(apart.head, Conv)
    drawn = np.random.default_rng(seed)
    windows = drawn.standard_normal((len(shares), 1, *WINDOW.size), np.float32)
    each, below = (
        np.average([output_at_once(it, weights, x) for x in windows], axis=0, weights=shares)
        for it in (net, apart)
    )
    np.testing.assert_allclose(local(apart.head, weights, [below[None]])[0], each, atol=1e-12)


def test_a_head_is_apart_and_joined_again() -> None:
    net = network()
    apart = with_deferred_head(net)
    assert (apart.out_features, apart.blended_features) == (9, 4)
    assert apart.parameters == net.parameters
    assert original(apart) == net
    assert with_deferred_head(apart) == alike(net, apart) == apart
    assert alike(net, net) == net


@pytest.mark.parametrize(
    "text",
    [
        CLASSES.replace("activation: identity", "activation: sigmoid"),
        CLASSES.replace("features: 9", "features: 4"),
    ],
    ids=["not linear", "no fewer sums"],
)
def test_other_heads_stay_with_their_layers(text: str) -> None:
    net = network(text)
    assert with_deferred_head(net) == net
    assert with_deferred_head(replace(network(), window=None, whole=None)).head is None
