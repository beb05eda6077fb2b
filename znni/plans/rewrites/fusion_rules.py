"""All rules by which two or three layers may be one step, and where a network matches them.

Each rule is a module.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from znni.plans.rewrites.fusion import Fusion
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

    Each later layer takes the value of the one right before it, once. That value has no other
    reader, and is not the network's output.
    """
    found, readers = dict[tuple[str, ...], Fusion](), readers_of(network.nodes)

    def follows(first: Node, last: Node) -> bool:
        alone = readers[first.name] == [last] and first.name != network.output
        return alone and last.inputs.count(first.name) == 1

    for count, rules in RULES:
        for start in range(len(network.nodes) - count + 1):
            nodes = network.nodes[start : start + count]
            for rule in rules if all(map(follows, nodes, nodes[1:])) else ():
                if operation := rule.fused(network, *nodes):
                    fusion = Fusion(nodes, operation)
                    found[fusion.layers] = fusion
    return MappingProxyType(found)


def fusion_of(network: Network, step: Step) -> Fusion | None:
    """Return the fusion that a step of several layers computes; None if there is no such one."""
    return fusions(network).get(tuple(layer.name for layer in step.layers))


def overwritten(network: Network) -> Mapping[str, str]:
    """Return the values in whose memory fusions have their outputs, by the names of these."""
    return {it.gives: it.overwrites for it in fusions(network).values() if it.overwrites}
