"""Two convolutions of one tap as one step: the wide layers in the blocks of MedNeXt and ConvNeXt.

The first convolution makes more maps than the second. These maps stay in a cache, a few voxels at a
time.
"""

from __future__ import annotations

from znni.core.shapes import ONE
from znni.network.layers import Conv, ConvPair
from znni.network.network import Network
from znni.network.node import Node


def fused(network: Network, first: Node, last: Node) -> ConvPair | None:
    """Return both layers as one operation, for a block."""
    match first.layer, last.layer:
        case Conv() as conv, Conv() as after if network.is_tiled:
            if _is_of_one_tap(conv) and _is_of_one_tap(after):
                return ConvPair(conv, after)
    return None


def _is_of_one_tap(conv: Conv) -> bool:
    """Return whether each voxel is computed from the same voxel, and each map by itself."""
    return conv.is_dense and conv.kernel == ONE and conv.activation != "softmax"
