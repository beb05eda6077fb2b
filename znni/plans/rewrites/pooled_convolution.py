"""A convolution and the pooling after it as one step, which stores the largest voxels alone."""

from __future__ import annotations

from znni.network.layers import Conv, Pool, PooledConv
from znni.network.network import Network
from znni.network.node import Node


def fused(network: Network, first: Node, last: Node) -> PooledConv | None:
    """Return both layers as one operation. In blocks of tiled networks they are always two."""
    match first.layer, last.layer:
        case Conv() as conv, Pool() as pool if not network.is_tiled and pool.window.volume > 1:
            return PooledConv(conv, pool)
    return None
