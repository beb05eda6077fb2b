"""The rule by which values of a tiled network share memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from znni.core.shapes import ZERO, Vec3
from znni.network.layers import (
    Add,
    Concat,
    Conv,
    Elementwise,
    GlobalPool,
    Layer,
    Maximum,
    Model,
    Multiply,
    Padding,
    PadLayer,
    PerMap,
    Pool,
    Upsample,
)
from znni.network.network import Network
from znni.network.node import INPUT, Node, readers_of


@dataclass(frozen=True)
class Location:
    """The place of a value in a storage.

    Attributes:
        storage: the name of the storage.
        first_map: the value's first map in it.
        start: the storage's first sample, counted from the first sample of the whole value.
    """

    storage: str
    first_map: int
    start: Vec3


def _overlap(
    locations: Mapping[str, Location], maps: Mapping[str, int], one: str, other: str
) -> bool:
    """Return whether two values lie in the same maps of a storage."""
    first, second = locations[one], locations[other]
    return (
        first.storage == second.storage
        and first.first_map < second.first_map + maps[other]
        and second.first_map < first.first_map + maps[one]
    )


def needs_zeros(layer: Layer) -> bool:
    """Return whether a layer's output depends on samples beyond its input, which are zero."""
    match layer:
        case Conv() | Pool():
            return layer.padding != Padding()
        case PerMap() | GlobalPool() | Model() | PadLayer():
            return False
        case Concat() | Add() | Multiply() | Maximum():
            return False
        case Upsample():
            return layer.mode != "nearest" or layer.shift != ZERO
        case _:
            return True


# Layers whose output may be the memory of their first input.
IN_PLACE = PerMap | PadLayer | Elementwise


# Layers whose inputs may lie where their output does.
SHARING = Concat | IN_PLACE


class _Sharing:
    """The rule by which values share memory: none is written over another that is read later.

    Args:
        network: the network, whose values get their places from the last one on.
        sizes: the samples of each whole value, by name.
    """

    def __init__(self, network: Network, sizes: Mapping[str, Vec3]) -> None:
        self._network = network
        self._sizes = sizes
        self._nodes = {node.name: node for node in network.nodes}
        self._made = {name: index for index, name in enumerate(self._nodes)}
        reads = [(name, at) for at, node in enumerate(network.nodes) for name in node.inputs]
        self._uses = Counter([network.output, *(name for name, _ in reads)])
        self._last_read = {name: self._made[name] for name in self._nodes} | dict(reads)
        self._last_read[network.output] = len(network.nodes)
        self._readers = readers_of(network.nodes)
        self._joined_in: dict[str, str] = {}

    def may_take(
        self, node: Node, name: str, place: Location, found: Mapping[str, Location]
    ) -> bool:
        """Return whether an input of a node may lie in the place of the node's value.

        If it is joined to others there, this is noted.

        Args:
            node: the node.
            name: the name of the input.
            place: where the input would lie.
            found: the places of the values that have one.
        """
        once = node.inputs.count(name) == 1
        match node.layer:
            case Concat() if once and name != INPUT and self._keeps_zeros(node, name):
                self._joined_in[name] = node.name
                if self.allows(name, place, found):
                    return True
                del self._joined_in[name]
                return False
            case PerMap() | PadLayer() | Add() | Multiply() | Maximum() if (
                once and node.inputs[0] == name
            ):
                alone = self._uses[name] == 1 and name != INPUT
                same = self._network.maps[name] == self._network.maps[node.name]
                return alone and same and self.allows(name, place, found)
            case _:
                return False

    def _keeps_zeros(self, node: Node, name: str) -> bool:
        """Return whether a join may hold an input's samples beyond its own, which it crops."""
        if self._sizes[name] == self._sizes[node.name]:
            return True
        return not any(
            needs_zeros(reader.layer)
            or (isinstance(reader.layer, Concat) and not self._keeps_zeros(reader, name))
            for reader in self._readers[node.name]
        )

    def allows(self, name: str, place: Location, found: Mapping[str, Location]) -> bool:
        """Return whether a value at a place spoils no other value, and no other spoils it."""
        placed = {**found, name: place}
        sharing = (
            other
            for other in found
            if other not in (name, INPUT) and _overlap(placed, self._network.maps, name, other)
        )
        in_order = (sorted((name, other), key=self._made.__getitem__) for other in sharing)
        return all(self._may_follow(before, after) for before, after in in_order)

    def _may_follow(self, before: str, after: str) -> bool:
        """Return whether a value may be made where an earlier one lies."""
        at: str | None = before
        while at is not None:  # the same data, joined to others
            if at == after:
                return True
            at = self._joined_in.get(at)
        last, made = self._last_read[before], self._made[after]
        by_voxel = isinstance(self._nodes[after].layer, IN_PLACE)
        return last < made or (last == made and by_voxel)
