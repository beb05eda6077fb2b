"""A convolution of packed values that also adds up its maps, for the norm after it.

The norm then does not read the maps for their sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from znni.core.shapes import ZERO
from znni.network.layers import Conv, ConvTranspose, Normalize, PackedLayer
from znni.network.node import Node
from znni.plans.rewrites.block_steps import BlockSteps, Near, Rewrite


def rewrite(steps: BlockSteps, node: Node) -> Rewrite | None:
    """Return the convolution and the norm with sums; None if the rule does not match.

    The norm reads all that the convolution computes, and nothing else. A transposed convolution
    computes whole steps of its stride, of which the norm may leave out the last samples.
    """
    norm = steps.packed(node.name)
    if norm is None or not isinstance(node.layer, Normalize):
        return None
    (name,) = node.inputs
    conv = steps.packed(name)
    if conv is None or not isinstance(conv.layer, Conv | ConvTranspose):
        return None
    geometry = steps.storage.geometry
    read, computed = geometry.reads[node.name][0], geometry.frames[name].computed
    left_out = computed.stop - read.stop
    if read.start != computed.start or not ZERO.within(left_out):
        return None
    if left_out != ZERO and not isinstance(conv.layer, ConvTranspose):
        return None
    summing = replace(conv, sums=True, left_out=left_out)
    return Rewrite({name: summing, node.name: replace(norm, sums=True)})


def variants(operation: PackedLayer, near: Near) -> Iterator[PackedLayer]:
    """Yield the operation of a convolution or a norm with sums."""
    layer = operation.layer
    sums = isinstance(layer, Conv | ConvTranspose) and any(
        isinstance(it, Normalize) for it in near.after
    )
    if operation.writes and (sums or isinstance(layer, Normalize)):
        yield replace(operation, sums=True)
