"""Fusions of all rules: one step computes what its layers do, and no other layer misses a value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from graphs import graphs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_networks import chain, networks

from znni.core.shapes import Vec3
from znni.network.frames import whole_sizes
from znni.network.geometry import over, whole_input
from znni.network.layers import Add, Conv, Join, Padding
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.weights import Float32, Weights, random_weights
from znni.plans.rewrites.fusion import Fusion, takes_of
from znni.plans.rewrites.fusion_rules import fusions
from znni.primitives.reference import Float64
from znni.primitives.tiled_reference import _cropped, _whole, output_at_once


def fused(network: Network, weights: Weights, x: Float32) -> Float64:
    """The output if each fusion is one step, which stores nothing between."""
    sizes = whole_sizes(network, Vec3(*x.shape[1:]))
    found: dict[str, Fusion] = {}
    for fusion in fusions(network).values():
        if not {*fusion.layers} & {name for it in found.values() for name in it.layers}:
            found[fusion.gives] = fusion
    between = {name for fusion in found.values() for name in fusion.between}
    values: dict[str, Float64] = {INPUT: x.astype(np.float64)}
    for node in network.nodes:
        if node.name in between:
            continue
        fusion = found.get(node.name)
        nodes = fusion.nodes if fusion else (node,)
        inner = {name: values[name] for name in takes_of(nodes)}
        for each in nodes:
            taken = [inner[name] for name in each.inputs]
            if isinstance(each.layer, Join):
                taken = _cropped(each, taken, sizes, "zeros")
            inner[each.name] = _whole(each.layer, weights, taken, "zeros")
        if fusion:
            assert fusion.operation.layers == tuple(each.layer.local for each in nodes)
            assert fusion.takes == takes_of(nodes)
            if fusion.overwrites:
                values.pop(fusion.overwrites)
        values[node.name] = inner[node.name]
    return values[network.output]


def residual_chain() -> Network:
    """A network with a fusion that overwrites a value which a convolution read before."""
    padding = Padding(Vec3(1, 1, 1), Vec3(1, 1, 1))
    first, inner, last = (
        Conv(name, maps, 2, Vec3(3, 3, 3), activation, padding=padding)
        for name, maps, activation in (("a", 1, "relu"), ("b", 2, "relu"), ("c", 2, "identity"))
    )
    nodes = (
        Node(first, (INPUT,)),
        Node(inner, ("a",)),
        Node(last, ("b",)),
        Node(Add("s", "elu"), ("a", "c")),
    )
    network = Network("residual", 1, nodes, "s")
    assert [it.overwrites for it in fusions(network).values()] == ["a"]
    return network


def wide_block() -> Network:
    """A network with two convolutions of one tap, and a sum that may be one step with the last."""
    one = Vec3(1, 1, 1)
    padding = Padding(one, one)
    first = Conv("a", 1, 3, Vec3(3, 3, 3), "relu", padding=padding)
    nodes = (
        Node(first, (INPUT,)),
        Node(Conv("b", 3, 7, one, "gelu"), ("a",)),
        Node(Conv("c", 7, 3, one, "identity"), ("b",)),
        Node(Add("s", "elu"), ("c", "a")),
    )
    network = Network("wide", 1, nodes, "s")
    assert [it.layers for it in fusions(network).values()] == [("b", "c"), ("c", "s")]
    return network


def with_linear_convolutions(network: Network) -> Network:
    nodes = (
        replace(node, layer=replace(node.layer, activation="identity", slope=0.01))
        if isinstance(node.layer, Conv)
        else node
        for node in network.nodes
    )
    return replace(network, nodes=tuple(nodes))


@settings(max_examples=60)
@given(
    st.one_of(networks(), graphs(depth=1, most_maps=3).map(with_linear_convolutions)),
    st.builds(Vec3, *[st.integers(1, 5)] * 3),
)
@example(chain(("conv", 2), ("pool", 2), ("conv", 2)), Vec3(3, 2, 1))
@example(residual_chain(), Vec3(3, 4, 5))
@example(wide_block(), Vec3(3, 4, 5))
def test_fused_steps_give_what_single_layers_give(network: Network, output: Vec3) -> None:
    if network.is_tiled:
        size = whole_input(network, output)
        network = over(network, size)
    else:
        size = network.field_of_view + (output - 1) * network.total_pooling
    weights = random_weights(network, 7)
    x = np.random.default_rng(0).standard_normal((network.in_features, *size), np.float32)
    np.testing.assert_array_equal(fused(network, weights, x), output_at_once(network, weights, x))
