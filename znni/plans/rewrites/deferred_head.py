"""The last layer of a network of windows, applied once to their blended values.

A layer that is linear at each voxel gives the same, but for rounding, before and after windows are
blended. If it makes more maps than it takes, fewer sums are blended.
"""

from __future__ import annotations

from dataclasses import replace

from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.node import Node
from znni.network.weights import Weights


def with_deferred_head(network: Network) -> Network:
    """Return a network with its last layer as ``head``, if that takes fewer sums of windows."""
    *before, last = network.nodes
    layer = last.layer
    if not (
        network.window
        and network.window.activation == "identity"  # it needs the last layer's maps
        and network.head is None
        and last.name == network.output
        and isinstance(layer, Conv)
        and layer.is_linear_at_voxels
        and last.inputs[0] not in network.pooled
        and layer.in_features < layer.out_features
        and any(isinstance(node.layer, Conv) for node in before)
    ):
        return network
    return replace(network, nodes=tuple(before), output=last.inputs[0], head=layer)


def alike(network: Network, other: Network) -> Network:
    """Return a network whose last layer is apart if that of another one is."""
    return with_deferred_head(network) if other.head else network


def original(network: Network) -> Network:
    """Return a network whose last layer is among the nodes."""
    if network.head is None:
        return network
    last = Node(network.head, (network.output,))
    return replace(network, nodes=(*network.nodes, last), output=last.name, head=None)


def rewritten_weights(_network: Network, weights: Weights) -> Weights:
    """Return the weights as they are: the head keeps its own."""
    return weights
