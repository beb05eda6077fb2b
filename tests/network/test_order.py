"""The order of a network's nodes against all orders, and a network whose file has a poor one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from graphs import graphs
from hypothesis import given, settings

from znni.core.shapes import Vec3
from znni.inference.planning import search
from znni.network import order
from znni.network.layers import Add, Conv, Join, Padding
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.order import order_of_lowest_peak


def peak(network: Network, nodes: tuple[Node, ...]) -> float:
    """Return the largest sum of living values, counted value by value."""
    sizes = {it: network.maps[it] / network.strides[it].volume for it in network.maps}
    found, made = 0.0, {INPUT}
    for index, node in enumerate(nodes):
        read_now = {network.output, *(name for it in nodes[index:] for name in it.inputs)}
        read_later = {network.output, *(name for it in nodes[index + 1 :] for name in it.inputs)}
        room = sizes[node.name]
        if isinstance(node.layer, Join):
            room -= sum(sizes[it] for it in node.inputs if it not in read_later)
        found = max(found, sum(sizes[it] for it in made & read_now) + max(0, room))
        made.add(node.name)
    return found


def orders(network: Network, made: tuple[Node, ...] = ()) -> Iterator[tuple[Node, ...]]:
    """Give every order in which the nodes can be computed."""
    if len(made) == len(network.nodes):
        yield made
    known = {INPUT, *(node.name for node in made)}
    for node in network.nodes:
        if node not in made and known.issuperset(node.inputs):
            yield from orders(network, (*made, node))


def wide_shortcut() -> Network:
    """Return a block whose wide shortcut is listed long before it is added."""

    def conv(name: str, taken: int, given: int, kernel: int) -> Conv:
        half = Vec3.of((kernel - 1) // 2)
        return Conv(name, taken, given, Vec3.of(kernel), "relu", padding=Padding(half, half))

    nodes = (
        Node(conv("wide", 1, 40, 1), (INPUT,)),
        Node(conv("a", 1, 2, 3), (INPUT,)),
        Node(conv("b", 2, 80, 3), ("a",)),
        Node(conv("c", 80, 2, 3), ("b",)),
        Node(conv("d", 2, 40, 3), ("c",)),
        Node(Add("sum"), ("d", "wide")),
        Node(conv("last", 40, 1, 1), ("sum",)),
    )
    return Network("shortcut", 1, nodes, "last")


def test_a_wide_shortcut_waits_until_it_is_needed() -> None:
    network = wide_shortcut()
    found = order_of_lowest_peak(network)
    assert [node.name for node in found][:3] == ["a", "b", "c"]
    assert peak(network, network.nodes) == 122
    assert peak(network, found) == 83


def test_plans_have_the_better_order() -> None:
    found = search(wide_shortcut(), Vec3.of(40), device="cpu", costs="built-in").fastest(1)[0]
    names = [step.gives for part in found.parts for step in part.steps]
    assert names.index("wide") > names.index("b")


def test_networks_with_too_many_orders_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    network = wide_shortcut()
    monkeypatch.setattr(order, "MOST_SETS", 3)
    assert order_of_lowest_peak.__wrapped__(network) == network.nodes


@settings(max_examples=60)
@given(graphs(depth=1, most_maps=3))
def test_no_order_has_a_lower_peak(network: Network) -> None:
    if len(network.nodes) <= 9:
        best = min(peak(network, nodes) for nodes in orders(network))
        assert peak(network, order_of_lowest_peak(network)) == pytest.approx(best)
