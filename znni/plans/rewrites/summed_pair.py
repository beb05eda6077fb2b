"""Two convolutions of one tap and the sum after them as one step: whole blocks of MedNeXt.

The second convolution adds to the other value as it stores, as ``summed_convolution`` says.
"""

from __future__ import annotations

from znni.network.layers import ConvPair, SummedConv, SummedConvPair
from znni.network.network import Network
from znni.network.node import Node
from znni.plans.rewrites import convolution_pair, summed_convolution


def fused(network: Network, first: Node, middle: Node, last: Node) -> SummedConvPair | None:
    """Return three layers as one operation, for a block."""
    pair = convolution_pair.fused(network, first, middle)
    summed = summed_convolution.fused(network, middle, last)
    match pair, summed:
        case ConvPair(conv=conv, after=after), SummedConv(add=add):
            kept = last.inputs[last.inputs[0] == middle.name]
            return None if kept in first.inputs else SummedConvPair(conv, after, add)
    return None
