"""All rules by which a plan has another network than the given one, in the order of their use.

Each rule is a module.
"""

from __future__ import annotations

from functools import reduce
from typing import Protocol

from znni.network.network import Network
from znni.network.weights import Weights
from znni.plans.rewrites import deferred_head, split_convolution


class NetworkRule(Protocol):
    """The functions of a rule."""

    def alike(self, network: Network, other: Network) -> Network:
        """Return a network that is rewritten where another one is, which may have other sizes."""

    def original(self, network: Network) -> Network:
        """Return a network as it was before the rule."""

    def rewritten_weights(self, network: Network, weights: Weights) -> Weights:
        """Return the weights of a network after the rule, given those of the network before."""


RULES: tuple[NetworkRule, ...] = (deferred_head, split_convolution)


def rewritten_alike(network: Network, other: Network) -> Network:
    """Return a given network that is rewritten as another one is."""
    return reduce(lambda found, rule: rule.alike(found, other), RULES, network)


def as_given(network: Network) -> Network:
    """Return a network as it was before any rule."""
    return reduce(lambda found, rule: rule.original(found), reversed(RULES), network)


def weights_after_rules(network: Network, weights: Weights) -> Weights:
    """Return the weights of a rewritten network's layers, given those of the given network."""
    return reduce(lambda found, rule: rule.rewritten_weights(network, found), RULES, weights)
