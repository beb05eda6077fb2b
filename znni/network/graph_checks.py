"""Checks of a network's graph, when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from znni.core.errors import InvalidInput
from znni.core.shapes import ONE, ZERO
from znni.network.layers import Join, Upsample
from znni.network.node import INPUT, Node

if TYPE_CHECKING:
    from znni.network.network import Network


def check_graph(network: Network) -> None:
    """Check that a network's nodes fit together.

    Raises:
        InvalidInput: there is no convolution, or two layers have the same name. Or a value is
            missing or unused, or numbers of maps do not match.
    """
    if not network.convolutions and not network.models:
        raise InvalidInput(f"network {network.name} has no convolution; give it at least one")
    names = [INPUT, *(node.name for node in network.nodes)]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidInput(f"network {network.name} has two layers named {name!r}; rename one")
    if network.output not in network.maps:
        raise InvalidInput(f"network {network.name} has no layer {network.output!r} for its output")
    used = {network.output, *(name for node in network.nodes for name in node.inputs)}
    if unused := [node.name for node in network.nodes if node.name not in used]:
        raise InvalidInput(
            f"network {network.name}: nothing takes the output of layer {unused[0]!r}; remove it"
        )
    network.scaling.of_maps(network.in_features)
    for node in network.nodes:
        _check_pooled(network, node)
        _check_shift(network, node)
    if network.output in network.pooled:
        raise InvalidInput(
            f"network {network.name}: its output has one sample for a whole window, as a "
            f"classifier's; give a network with an output for every voxel"
        )
    if network.is_tiled and (span := network.strides[network.output]) != ONE:
        raise InvalidInput(
            f"network {network.name}: a sample of its output spans {span} "
            f"voxels; end it with upsampling to the input's resolution, or use only layers "
            f"without padding, which can give every voxel"
        )


def _check_pooled(network: Network, node: Node) -> None:
    """Check that a join does not mix values of one sample with others."""
    if not isinstance(node.layer, Join):
        return
    pooled = [name in network.pooled for name in node.inputs]
    if node.aligned != node.inputs:
        fits = pooled == [False, True]
    else:
        fits = all(pooled) or not any(pooled)
    if not fits:
        raise InvalidInput(
            f"layer {node.name} of network {network.name} joins a globally pooled value with one "
            f"that is not; only multiply takes these, the pooled one second"
        )


def _check_shift(network: Network, node: Node) -> None:
    """Check that every block has more samples of a shifted value than it is shifted by.

    So the first block has the sample that is repeated.
    """
    if not isinstance(node.layer, Upsample) or node.layer.shift == ZERO:
        return
    most = network.alignment // network.strides[node.name] - 1
    if not node.layer.shift.within(most):
        raise InvalidInput(
            f"layer {node.name} shifts by {node.layer.shift}, and blocks of network "
            f"{network.name} allow {most}; shift only after upsampling"
        )
