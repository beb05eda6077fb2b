"""All rules by which two layers may be one step, and where a network matches them.

Each rule is a module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol

from znni.network.layers import FusedOperation
from znni.network.network import Network
from znni.network.node import Node, readers_of
from znni.plans.rewrites import convolution_pair, pooled_convolution, summed_convolution
from znni.plans.rewrites.fusion import Fusion
from znni.plans.segments import Step


class FusionRule(Protocol):
    """The function of a rule."""

    def fused(self, network: Network, first: Node, last: Node) -> FusedOperation | None:
        """Return the operation that replaces two layers; None if the rule does not match."""


RULES: tuple[FusionRule, ...] = (pooled_convolution, summed_convolution, convolution_pair)


@lru_cache(maxsize=256)
def fusions(network: Network) -> Mapping[tuple[str, ...], Fusion]:
    """Return the layers of a network that may be one step, by their names.

    The second layer takes the value of the one right before it, once. That value has no other
    reader, and is not the network's output.
    """
    found, readers = dict[tuple[str, ...], Fusion](), readers_of(network.nodes)
    for first, last in pairwise(network.nodes):
        alone = readers[first.name] == [last] and first.name != network.output
        for rule in RULES if alone and last.inputs.count(first.name) == 1 else ():
            if operation := rule.fused(network, first, last):
                found[first.name, last.name] = Fusion((first, last), operation)
    return MappingProxyType(found)


def fusion_of(network: Network, step: Step) -> Fusion | None:
    """Return the fusion that a step of several layers computes; None if there is no such one."""
    return fusions(network).get(tuple(layer.name for layer in step.layers))


def overwritten(network: Network) -> Mapping[str, str]:
    """Return the values in whose memory fusions have their outputs, by the names of these."""
    return {it.gives: it.overwrites for it in fusions(network).values() if it.overwrites}
