"""Convolutions that may add to another value as they store: the shortcuts of residual networks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from znni.network.layers import Add, Conv, PackedLayer, SummedConv
from znni.network.network import Network
from znni.network.node import INPUT, Node


class SummedNodes(NamedTuple):
    """A convolution and the sum right after it.

    Attributes:
        conv: the convolution's node.
        add: the sum's node.
        other: the name of the value to which the convolution adds.
        operation: both layers as one, for a block.
    """

    conv: Node
    add: Node
    other: str
    operation: SummedConv

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of the values that both layers take as one step."""
        return *self.conv.inputs, self.other

    def packed(self, parts: int) -> PackedLayer:
        """Return both layers as one, on packed values whose numbers have so many parts."""
        return PackedLayer(self.operation, reads=True, writes=True, parts=parts)


@lru_cache(maxsize=256)
def summed_convolutions(network: Network) -> Mapping[str, SummedNodes]:
    """Return the convolutions that may be one step with the sum after them, by the sum's name.

    Only the sum takes the convolution, which has no activation. No later layer takes the other
    value, so the sum may overwrite it. The convolution itself must not read that value, because it
    reads neighbours of voxels that it has already overwritten.
    """
    readers: dict[str, list[str]] = {}
    for node in network.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node.name)
    found = {}
    for before, node in pairwise(network.nodes):
        conv, add = before.layer, node.layer
        if not isinstance(conv, Conv) or not isinstance(add, Add):
            continue
        if conv.activation != "identity" or before.name not in node.inputs:
            continue
        first, second = node.inputs
        other = second if first == before.name else first
        alone = readers[before.name] == [node.name] and readers[other][-1] == node.name
        kept = (INPUT, network.output, *before.inputs)
        if alone and other not in kept and before.name != network.output:
            found[node.name] = SummedNodes(before, node, other, SummedConv(conv.local, add))
    return MappingProxyType(found)
