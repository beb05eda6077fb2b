"""A convolution and the pooling after it as one step, which stores the largest voxels alone."""

from __future__ import annotations

from znni.network.layers import Conv, Pool, PooledConv
from znni.network.network import Network
from znni.network.node import Node
from znni.plans.rewrites.fusion import FusionRule


def _pooled(network: Network, nodes: tuple[Node, ...]) -> PooledConv | None:
    """Return both layers as one operation; None in an exact network, whose blocks have no such."""
    match [node.layer for node in nodes]:
        case [Conv() as conv, Pool() as pool] if not network.is_exact and pool.window.volume > 1:
            return PooledConv(conv, pool)
    return None


POOLED_CONVOLUTION = FusionRule(2, _pooled)
