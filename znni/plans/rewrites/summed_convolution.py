"""A convolution and the sum after it as one step: the shortcuts of residual networks.

The convolution adds to the other value as it stores. So the sum lies where that value lies.
"""

from __future__ import annotations

from znni.network.layers import Add, Conv, SummedConv
from znni.network.network import Network
from znni.network.node import INPUT, Node, readers_of
from znni.plans.rewrites.fusion import takes_of


def fused(network: Network, first: Node, last: Node) -> SummedConv | None:
    """Return both layers as one operation, for a block.

    The convolution has no activation. No later layer takes the other value, so the sum may
    overwrite it. The convolution itself must not read that value, because it reads neighbours of
    voxels that it has already overwritten.
    """
    match first.layer, last.layer:
        case Conv(activation="identity") as conv, Add() as add:
            other = takes_of((first, last))[-1]
            kept = (INPUT, network.output, *first.inputs)
            if other not in kept and readers_of(network.nodes)[other][-1] == last:
                return SummedConv(conv.local, add)
    return None
