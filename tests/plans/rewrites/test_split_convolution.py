"""Convolutions of upsampled values that are split give what the whole ones give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.network.geometry import over
from znni.network.layers import Conv, ConvTranspose
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.plans.rewrites.split_convolution import (
    alike,
    original,
    rewritten_weights,
    split,
    splittable,
)
from znni.primitives.tiled_reference import output_at_once

JOINED = """\
name: joined
layers:
  - name: skip
    conv: {features: 3, kernel: 3, padding: same, activation: relu}
  - pool: {window: WINDOW, stride: WINDOW}
  - conv: {features: 5, kernel: 3, padding: same, activation: relu}
  - name: up
    upsample: {factor: WINDOW}
  - name: join
    concat: {}
    from: INPUTS
  - name: decoder
    conv: {features: 4, kernel: KERNEL, padding: PADDING, activation: ACTIVATION}
  - name: head
    conv: {features: 2, kernel: 1}
"""
ALONE = """\
name: alone
layers:
  - conv: {features: 3, kernel: 2, stride: 2}
  - name: up
    upsample: {factor: 2}
  - name: decoder
    conv: {features: 4, kernel: 3, padding: same, activation: elu}
"""


CROPPED = """\
name: cropped
layers:
  - name: skip
    conv: {features: 3, kernel: 3, activation: relu}
  - pool: {window: 2, stride: 2}
  - conv: {features: 5, kernel: 3, activation: relu}
  - name: up
    upsample: {factor: 2}
  - name: join
    concat: {}
    from: [up, skip]
  - name: decoder
    conv: {features: 4, kernel: 3, padding: PADDING, activation: relu}
  - name: head
    conv: {features: 2, kernel: 1}
"""


def cropped(padding: str) -> Network:
    """A U-Net whose join crops the skip."""
    network = network_from_text(CROPPED.replace("PADDING", padding), "cropped")
    return over(network, Vec3(12, 16, 18))


def joined(
    window: str = "2",
    inputs: str = "[skip, up]",
    kernel: str = "3",
    padding: str = "same",
    activation: str = "relu",
) -> Network:
    """A U-Net of two levels, for a volume of 12 x 16 x 18 voxels."""
    text = JOINED.replace("WINDOW", window).replace("INPUTS", inputs).replace("KERNEL", kernel)
    text = text.replace("PADDING", padding).replace("ACTIVATION", activation)
    return over(network_from_text(text, "joined"), Vec3(12, 16, 18))


NETWORKS = {
    "after the skip": joined(),
    "before the skip": joined(inputs="[up, skip]", activation="leaky_relu"),
    "in planes": joined(window="[1, 2, 2]", kernel="[3, 3, 5]"),
    "by other factors": joined(window="[3, 2, 3]", kernel="[3, 1, 5]", activation="elu"),
    "valid": joined(padding="valid"),
    "cropped": cropped("valid"),
    "alone": over(network_from_text(ALONE, "alone"), Vec3(12, 16, 18)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_split_convolutions_give_what_whole_ones_give(name: str) -> None:
    network = NETWORKS[name]
    found = splittable(network)
    assert [it.conv.name for it in found] == ["decoder"]
    made = split(network, found)
    weights = random_weights(network, 3)
    parts = rewritten_weights(made, weights)
    for layer in made.layers:
        if isinstance(layer, Conv | ConvTranspose):
            assert parts[layer.name].weight.shape == layer.weight_shape
    x = np.random.default_rng(0).standard_normal((1, 12, 16, 18), np.float32)
    right = output_at_once(network, weights, x)
    assert np.abs(output_at_once(made, parts, x) - right).max() < 1e-6 * np.abs(right).max()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_split_network_is_original(name: str) -> None:
    network = NETWORKS[name]
    made = split(network, splittable(network))
    assert made != network
    assert original(made) == network
    assert alike(network, made) == made
    assert alike(network, network) == network
    assert made.strides[made.output] == network.strides[network.output]


def test_values_that_a_run_holds_are_counted() -> None:
    network = joined()
    made = split(network, splittable(network))
    assert made.weighted == network.weighted
    assert made.parameters == network.parameters == network.held_parameters
    # 4 taps along each axis for 5 maps, 3 taps for 3 maps, and the biases of both.
    assert made.held_parameters == network.parameters + 4 * (5 * 64 + 3 * 27 + 2)


def test_weights_of_whole_networks_stay_as_they_are() -> None:
    network = joined()
    weights = random_weights(network, 3)
    assert rewritten_weights(network, weights) is weights


@pytest.mark.parametrize(
    "network",
    [
        joined(activation="prelu"),
        joined(window="1"),
        joined(kernel="2"),
        joined(inputs="[skip, up, skip]"),
        cropped("same"),
    ],
    ids=["slopes of maps", "not upsampled", "padding on one side", "three values", "zeros inside"],
)
def test_other_convolutions_cannot_be_split(network: Network) -> None:
    assert splittable(network) == ()


def test_values_that_other_layers_take_are_not_split() -> None:
    text = (
        JOINED
        + """\
  - name: again
    concat: {}
    from: [head, USED]
  - conv: {features: 1, kernel: 1}
"""
    )
    for used in ("up", "join"):
        graph = text.replace("WINDOW", "2").replace("INPUTS", "[skip, up]").replace("USED", used)
        graph = graph.replace("KERNEL", "3").replace("PADDING", "same")
        network = network_from_text(graph.replace("ACTIVATION", "relu"), "used")
        assert splittable(over(network, Vec3(12, 16, 18))) == ()


def test_a_network_for_no_volume_is_refused() -> None:
    with pytest.raises(ValueError, match="is for no volume"):
        splittable(network_from_text(ALONE, "alone"))


def test_a_record_of_other_layers_is_refused() -> None:
    (it,) = splittable(joined())
    assert isinstance(it.layers[0], Conv)
    with pytest.raises(InvalidInput, match="up is no convolution of an upsampled value"):
        _ = replace(it, conv=it.upsample).layers
