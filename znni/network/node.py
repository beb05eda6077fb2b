"""Nodes of a network's graph, and convolutions that are split into several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.network.layers import Conv, GlobalPool, Layer, Multiply, Upsample

# The name of the network's input. No layer can have this name.
INPUT = ""


@dataclass(frozen=True)
class Node:
    """A layer of a network and the values that it takes.

    Attributes:
        layer: the layer. Its name is also the name of the node and of the node's value.
        inputs: the names of the values that it takes. Each is the network's ``INPUT`` or an earlier
            node.
    """

    layer: Layer
    inputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the node and of its value."""
        return self.layer.name

    @property
    def aligned(self) -> tuple[str, ...]:
        """The names of the values whose samples lie where its own do; not of one that spreads."""
        spreads = isinstance(self.layer, Multiply) and self.layer.spreads
        return self.inputs[:1] if spreads else self.inputs

    def is_pooled(self, pooled: Set[str]) -> bool:
        """Return whether its value has one sample for a whole window.

        Args:
            pooled: the values before it that have one.
        """
        return isinstance(self.layer, GlobalPool) or pooled >= set(self.aligned)


@dataclass(frozen=True)
class SplitConv:
    """A convolution of an upsampled value that is split, as ``split_convolution`` explains.

    Attributes:
        upsample: the upsampling.
        join: the concatenation with a finer value, if there is one.
        conv: the convolution.
        first: the first of its input maps that are upsampled.
        maps: the number of these maps.
    """

    upsample: Node
    join: Node | None
    conv: Node
    first: int
    maps: int

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The layers that are not computed as they are."""
        joined = () if self.join is None else (self.join,)
        return (self.upsample, *joined, self.conv)

    @property
    def layers(self) -> tuple[Conv, Vec3]:
        """The convolution, and the factor of the upsampling."""
        conv, upsample = self.conv.layer, self.upsample.layer
        if not isinstance(conv, Conv) or not isinstance(upsample, Upsample):
            raise InvalidInput(f"{self.conv.name} is no convolution of an upsampled value")
        return conv, upsample.factor

    @property
    def fine_input(self) -> str | None:
        """The name of the finer value, if there is one."""
        if self.join is None:
            return None
        return next(name for name in self.join.inputs if name != self.upsample.name)

    @property
    def coarse(self) -> str:
        """The name of the convolution's part that reads the value before it is upsampled."""
        return f"{self.conv.name}.coarse"

    @property
    def fine(self) -> str:
        """The name of its part that reads the finer value."""
        return f"{self.conv.name}.fine"


def readers_of(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Return the nodes that take each value, by the value's name, in their order.

    A node that takes a value twice is listed once. A value that no node takes has an empty list.
    """
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        readers.setdefault(node.name, [])
        for name in dict.fromkeys(node.inputs):
            readers.setdefault(name, []).append(node)
    return readers


def maps_of(node: Node, maps: Mapping[str, int]) -> int:
    """Return the maps of a node's value, given the maps of the values before it."""
    for name in node.inputs:
        if name not in maps:
            raise InvalidInput(f"layer {node.name} takes {name!r}, which no layer before it gives")
    arity = node.layer.arity
    if len(node.inputs) != arity and (arity is not None or len(node.inputs) < 2):
        takes = "2 or more values" if arity is None else counted(arity, "value")
        raise InvalidInput(f"layer {node.name} takes {takes}, but it is given {len(node.inputs)}")
    return node.layer.maps_from(*(maps[name] for name in node.inputs))


def stride_of(node: Node, strides: Mapping[str, Vec3]) -> Vec3:
    """Return the distance in voxels between samples of a node's value, given those before it.

    Raises:
        InvalidInput: the node joins values with different distances, or upsamples too far.
    """
    taken = {strides[name] for name in node.aligned}
    if len(taken) > 1:
        apart = " and ".join(f"{name or 'input'!r} ({strides[name]})" for name in node.aligned)
        raise InvalidInput(
            f"layer {node.name} joins {apart}, whose strides differ; upsample the coarser one first"
        )
    return node.layer.scaled(taken.pop())
