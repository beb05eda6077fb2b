"""Plans that are given for another input than they were made for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.inference.plan_checks import check_made_for
from znni.inference.planning import search
from znni.network.geometry import over
from znni.network.layers import Conv, Padding
from znni.network.network import Network
from znni.network.node import INPUT, Node


def test_a_plan_of_a_tiled_network_names_the_input_that_it_is_for() -> None:
    ones = Vec3(1, 1, 1)
    layer = Conv("conv", 1, 2, Vec3(3, 3, 3), "relu", padding=Padding(ones, ones))
    network = Network("padded", 1, (Node(layer, (INPUT,)),), "conv")
    plan = search(network, Vec3(20, 20, 20), device="cpu", costs="built-in").fastest(1)[0]
    check_made_for(plan, over(network, Vec3(20, 20, 20)), None)
    with pytest.raises(InvalidInput, match=r"for an input of 20x20x20 .*, not 20x20x30, padding"):
        check_made_for(plan, over(network, Vec3(20, 20, 30)), None)


def test_a_plan_is_another_one_only_for_an_input_with_other_statistics() -> None:
    layer = Conv("conv", 1, 2, Vec3(3, 3, 3), "relu")
    network = Network.chain("chain", 1, (layer,))
    plan = search(network, Vec3(20, 20, 20), device="cpu", costs="built-in").fastest(1)[0]
    assert plan.normalized_as(network) is plan
    brighter = replace(network, scaling=replace(network.scaling, scale=2.0))
    assert plan.normalized_as(brighter).network.scaling == brighter.scaling
