"""All rules by which two or three layers may be one step, and where a network matches them.

Each rule is a module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from znni.network.layers import FusedOperation
from znni.network.network import Network
from znni.network.node import Node, readers_of
from znni.plans.rewrites import (
    convolution_pair,
    pooled_convolution,
    summed_convolution,
    summed_pair,
)
from znni.plans.rewrites.fusion import Fusion, takes_of
from znni.plans.segments import Step


class PairRule(Protocol):
    """The function of a rule for two layers."""

    def fused(self, network: Network, first: Node, last: Node) -> FusedOperation | None:
        """Return the operation that replaces the layers; None if the rule does not match."""


class TripleRule(Protocol):
    """The function of a rule for three layers."""

    def fused(
        self, network: Network, first: Node, middle: Node, last: Node
    ) -> FusedOperation | None:
        """Return the operation that replaces the layers; None if the rule does not match."""


# Three layers are tried first, because a layer is in one step only.
RULES: tuple[tuple[int, tuple[PairRule | TripleRule, ...]], ...] = (
    (3, (summed_pair,)),
    (2, (pooled_convolution, summed_convolution, convolution_pair)),
)


@lru_cache(maxsize=256)
def fusions(network: Network) -> Mapping[tuple[str, ...], Fusion]:
    """Return the layers of a network that may be one step, by their names.

    Each later layer takes the value of the one before it, once. That value has no other reader, and
    is not the network's output. In a tiled network, other layers may come between them: the step
    comes at the place of its last layer. Then no other layer takes what the step takes, because it,
    or a layer after it, might compute in that memory.
    """
    found = dict[tuple[str, ...], Fusion]()
    for count, rules in RULES:
        for nodes in _chains(network, count):
            for rule in rules:
                if operation := rule.fused(network, *nodes):
                    fusion = Fusion(nodes, operation)
                    found[fusion.layers] = fusion
    return MappingProxyType(found)


def _chains(network: Network, count: int) -> Iterator[tuple[Node, ...]]:
    """Yield so many nodes that ``fusions`` may make one step, wherever there are such ones."""
    readers, order = readers_of(network.nodes), network.nodes
    places = {node.name: place for place, node in enumerate(order)}
    for first in order:
        chain = [first]
        while len(chain) < count:
            name = chain[-1].name
            after = readers[name]
            if name == network.output or len(after) != 1 or after[0].inputs.count(name) != 1:
                break
            chain += after
        else:
            nodes = tuple(chain)
            apart = places[nodes[-1].name] - places[first.name] >= count
            alone = all(it in nodes for name in takes_of(nodes) for it in readers[name])
            if not apart or (network.is_tiled and alone):
                yield nodes


def fusion_of(network: Network, step: Step) -> Fusion | None:
    """Return the fusion that a step of several layers computes; None if there is no such one."""
    return fusions(network).get(tuple(layer.name for layer in step.layers))


def overwritten(network: Network) -> Mapping[str, str]:
    """Return the values in whose memory fusions have their outputs, by the names of these."""
    return {it.gives: it.overwrites for it in fusions(network).values() if it.overwrites}
