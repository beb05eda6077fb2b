"""A convolution of packed values that also adds up its maps, for the norm after it.

The norm then does not read the maps for their sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from znni.network.layers import Conv, ConvTranspose, Normalize, PackedLayer
from znni.network.node import Node
from znni.plans.rewrites.block_steps import BlockSteps, Near, Rewrite


def rewrite(steps: BlockSteps, node: Node) -> Rewrite | None:
    """Return the convolution and the norm with sums; None if the rule does not match.

    The norm reads all that the convolution computes, and nothing else.
    """
    norm = steps.packed(node.name)
    if norm is None or not isinstance(node.layer, Normalize):
        return None
    (name,) = node.inputs
    conv = steps.packed(name)
    if conv is None or not isinstance(conv.layer, Conv | ConvTranspose):
        return None
    geometry = steps.storage.geometry
    if geometry.reads[node.name][0] != geometry.frames[name].computed:
        return None
    return Rewrite({name: replace(conv, sums=True), node.name: replace(norm, sums=True)})


def variants(operation: PackedLayer, near: Near) -> Iterator[PackedLayer]:
    """Yield the operation of a convolution or a norm with sums."""
    layer = operation.layer
    sums = isinstance(layer, Conv | ConvTranspose) and any(
        isinstance(it, Normalize) for it in near.after
    )
    if operation.writes and (sums or isinstance(layer, Normalize)):
        yield replace(operation, sums=True)
