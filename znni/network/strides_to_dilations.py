"""Strides become dilations, so that a network slides: every voxel has an output.

A chain of convolutions and max-poolings slides by fragments, and needs none of this. Other networks
may pool by averages, or by windows that overlap, or have convolutions with strides. If their
output has a stride, they give one value for each of the windows that they were trained on. The
same layers without strides give that value for a window at every voxel. The samples that a later
layer reads are then as far apart as the strides before it have made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from znni.core.shapes import ONE, ZERO, Vec3
from znni.network.layer_geometry import NO_PADDING
from znni.network.layers import Add, Affine, Concat, Conv, Layer, Maximum, Multiply, Pool
from znni.network.node import INPUT, Node, stride_of


class Slid(NamedTuple):
    """The layers of a network that slides.

    Attributes:
        nodes: the layers with their inputs.
        stride: the voxels between outputs of the layers as they were given. It is 1 if they slide
            already, or cannot.
    """

    nodes: tuple[Node, ...]
    stride: Vec3 = ONE


def slid(nodes: Sequence[Node], output: str) -> Slid:
    """Return layers that give an output for every voxel.

    Layers stay as they are if their output has no stride, or if fragments give every voxel. They
    also stay if a layer pads, upsamples or looks at a whole window: each window then has edges of
    its own. And they stay if a join crops an odd number of samples, whose centre lies elsewhere.
    """
    given = Slid(tuple(nodes))
    if all(node.layer.is_dense for node in nodes):
        return given
    strides, lost = {INPUT: ONE}, {INPUT: ZERO}
    for node in nodes:
        if not _slides(node.layer):
            return given
        strides[node.name] = stride_of(node, strides)
        read = strides[node.inputs[0]]
        taken = [lost[name] for name in node.inputs]
        most = taken[0]
        for each in taken[1:]:
            most = most.maximum(each)
        if any((most - each) % (read * 2) != ZERO for each in taken):
            return given
        reach = node.layer.reach if isinstance(node.layer, Conv | Pool) else ONE
        lost[node.name] = most + (reach - 1) * read
    if strides[output] == ONE:
        return given
    return Slid(
        tuple(replace(it, layer=_spread(it.layer, strides[it.inputs[0]])) for it in nodes),
        strides[output],
    )


def _slides(layer: Layer) -> bool:
    """Return whether a layer computes the same everywhere, without edges."""
    match layer:
        case Conv(padding=padding) | Pool(padding=padding):
            return padding == NO_PADDING
        case Multiply(spreads=spreads):
            return not spreads
    return isinstance(layer, Affine | Add | Maximum | Concat)


def _spread(layer: Layer, by: Vec3) -> Layer:
    """Return a layer without a stride, for samples that are so many times as far apart."""
    match layer:
        case Conv():
            return replace(layer, stride=ONE, dilation=layer.dilation * by)
        case Pool():
            return replace(layer, step=ONE, dilation=layer.dilation * by)
    return layer
