"""Networks as graphs: the values alive, the regions of values, and the errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from random_networks import networks

from znni.core.errors import InvalidInput
from znni.core.shapes import ZERO, Box, Vec3
from znni.network.geometry import block_geometry, context, over, whole_input
from znni.network.layers import Add, Conv, Multiply, Pool
from znni.network.network import Network
from znni.network.node import INPUT, Node, readers_of


def conv(name: str, maps: int, kernel: int) -> Conv:
    return Conv(name, maps, 2, Vec3.of(kernel), "relu")


def with_a_skip() -> Network:
    """Return a network that crops a convolution's output and adds it to a later value."""
    nodes = (
        Node(conv("first", 1, 2), (INPUT,)),
        Node(conv("deep", 2, 3), ("first",)),
        Node(conv("deeper", 2, 4), ("deep",)),
        Node(Add("join"), ("deeper", "first")),
        Node(conv("last", 2, 1), ("join",)),
    )
    return Network("skip", 1, nodes, "last")


def test_a_value_is_alive_until_its_last_use() -> None:
    assert with_a_skip().alive == (
        (INPUT,),
        ("first",),
        ("first", "deep"),
        ("first", "deeper"),
        ("join",),
        ("last",),
    )


def test_each_value_is_read_once_by_each_node_that_takes_it() -> None:
    twice = Add("twice"), ("first", "first")
    readers = readers_of((*with_a_skip().nodes, Node(*twice)))
    assert {name: [node.name for node in nodes] for name, nodes in readers.items()} == {
        INPUT: ["first"],
        "first": ["deep", "join", "twice"],
        "deep": ["deeper"],
        "deeper": ["join"],
        "join": ["last"],
        "last": [],
        "twice": [],
    }


def test_a_value_is_known_where_any_of_its_uses_needs_it() -> None:
    network = over(with_a_skip(), whole_input(with_a_skip(), Vec3(40, 40, 40)))
    geometry = block_geometry(network, Vec3(5, 6, 7))
    stored = {name: frame.stored for name, frame in geometry.frames.items()}
    block = Box(ZERO, Vec3(5, 6, 7))
    assert stored["last"] == stored["join"] == stored["deeper"] == block
    assert geometry.reads["join"] == (block, block.shifted(Vec3(2, 2, 2))), "cropped to the centre"
    assert stored["deep"] == Box(ZERO, Vec3(8, 9, 10))
    assert stored["first"] == Box(ZERO, Vec3(10, 11, 12)), "the skip needs less"
    assert context(network) == Vec3(6, 6, 6)


def test_pooled_values_lie_strides_apart() -> None:
    layers = conv("a", 1, 3), Pool("p", Vec3(2, 2, 1)), conv("b", 2, 3), Pool("q", Vec3(3, 2, 2))
    network = Network.chain("net", 1, layers)
    assert network.strides["b"] == Vec3(2, 2, 1)
    assert network.total_pooling == Vec3(6, 4, 2)
    assert network.field_of_view == Vec3(3 + 1 + 2 * 2 + 2 * 2, 3 + 1 + 2 * 2 + 2, 3 + 2 + 1)
    shapes = network.shapes(network.total_pooling * 2)
    assert shapes["q"] == (48, 2, 2, 2, 2)
    assert shapes["p"].n == 4


@given(networks())
def test_the_shapes_of_a_chain_are_those_of_layer_after_layer(network: Network) -> None:
    patch = network.total_pooling * 2
    size, batch = patch + network.field_of_view - 1, 1
    shapes = network.shapes(patch)
    assert shapes[INPUT].size == size
    for layer in network.layers:
        if isinstance(layer, Conv):
            size -= layer.kernel - 1
        else:
            size, batch = size // layer.window, batch * layer.window.volume
        assert shapes[layer.name].size == size
        assert shapes[layer.name].n == batch


def test_joined_values_have_one_stride() -> None:
    network = with_a_skip()
    pooled = Node(Pool("pool", Vec3(2, 2, 2)), ("deep",))
    deeper = Node(conv("deeper", 2, 4), ("pool",))
    nodes = (*network.nodes[:2], pooled, deeper, *network.nodes[3:])
    with pytest.raises(InvalidInput, match=r"join joins 'deeper' \(2x2x2\) and 'first' \(1x1x1\)"):
        replace(network, nodes=nodes)


@pytest.mark.parametrize(
    ("nodes", "output", "said"),
    [
        ((Node(conv("a", 1, 1), ("b",)),), "a", "takes 'b', which no layer before it gives"),
        ((Node(conv("a", 1, 1), (INPUT,)),), "b", "has no layer 'b' for its output"),
        (
            (Node(conv("a", 1, 1), (INPUT,)), Node(conv("b", 1, 1), (INPUT,))),
            "b",
            "nothing takes the output of layer 'a'; remove it",
        ),
        ((Node(conv("a", 1, 1), ()),), "a", "layer a takes 1 value, but it is given 0"),
        ((Node(conv(INPUT, 1, 1), (INPUT,)),), INPUT, "two layers named ''"),
        (
            (Node(conv("a", 1, 1), (INPUT,)), Node(conv("a", 2, 1), ("a",))),
            "a",
            "two layers named 'a'",
        ),
    ],
)
def test_what_is_no_network_is_refused(nodes: tuple[Node, ...], output: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Network("net", 1, nodes, output)


def test_the_text_of_a_layer_has_what_differs_from_the_defaults() -> None:
    """Ledgers hash it, so a new field must not change the text of layers that do not use it."""
    two = Vec3(2, 2, 2)
    text = "Conv(name='c', in_features=1, out_features=3, kernel=Vec3(z=2, y=2, x=2), activation="
    assert repr(Conv("c", 1, 3, two, "relu")) == f"{text}'relu')"
    leaky = Conv("c", 1, 3, two, "leaky_relu", slope=0.2)
    assert repr(leaky) == f"{text}'leaky_relu', slope=0.2)"
    assert repr(Pool("p", two, step=two)) == "Pool(name='p', window=Vec3(z=2, y=2, x=2))"
    assert repr(Multiply("m", is_gate=True)) == "Multiply(name='m', is_gate=True)"
