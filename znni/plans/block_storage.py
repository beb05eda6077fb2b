"""Storages of an exact network's block: the arrays in which its values lie.

Joins need no copies. A value that is concatenated is made where the whole lies. A value that only
one later layer takes, voxel by voxel, gives its memory to that layer's output. If a convolution may
add to a value as it stores, that value gives its memory to the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from znni.core.shapes import Box, Shape5, Vec3
from znni.network.geometry import BlockGeometry, block_geometry
from znni.network.layers import Add, Affine, Concat, Multiply
from znni.network.network import INPUT, Network, Node
from znni.plans.summed import SummedNodes, summed_convolutions

ZERO = Vec3(0, 0, 0)

# A value is made within a larger array only if the array then grows by no more than this factor.
MOST_GROWTH = 1.25


@dataclass(frozen=True)
class Storage:
    """An array of a block.

    Attributes:
        name: the name of the value that it is made for.
        shape: its shape.
    """

    name: str
    shape: Shape5


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


@dataclass(frozen=True)
class BlockStorage:
    """The storages of a block, and where each value lies in them.

    Attributes:
        geometry: the samples of the values.
        storages: the storages by name. That of the network's input is among them.
        locations: the places of the values by name.
        maps: the numbers of maps of the values by name.
    """

    geometry: BlockGeometry
    storages: Mapping[str, Storage]
    locations: Mapping[str, Location]
    maps: Mapping[str, int]

    def steps_of(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return the nodes that need a step: all but joins whose inputs are made in their place."""
        return tuple(
            node
            for node in nodes
            if not isinstance(node.layer, Concat)
            or any(
                self.locations[name].storage != self.locations[node.name].storage
                for name in node.inputs
            )
        )

    def sums_in_place(self, nodes: SummedNodes) -> bool:
        """Return whether a convolution may add to the other value where that lies."""
        conv, add = nodes.conv.name, nodes.add.name
        read = self.geometry.reads[add][nodes.add.inputs.index(conv)]
        in_place = self.locations[nodes.other].storage == self.locations[add].storage
        return in_place and read == self.geometry.frames[conv].computed

    def shape_taken(self, name: str, takes: tuple[str, ...]) -> Shape5:
        """Return the shape of all that a node reads, as one array with the maps of its inputs.

        Args:
            name: the node's name.
            takes: the names of the values that it takes.
        """
        maps = sum(self.maps[taken] for taken in takes)
        return Shape5.of(1, maps, self.geometry.reads[name][0].size)

    def shape_made(self, name: str) -> Shape5:
        """Return the shape of what a node computes."""
        return Shape5.of(1, self.maps[name], self.geometry.frames[name].computed.size)

    def read(self, node: Node, index: int) -> Box:
        """Return the samples of a storage that a node reads for one of its inputs.

        Args:
            node: the node.
            index: the number of the input.
        """
        box = self.geometry.reads[node.name][index]
        return box.shifted(ZERO - self.locations[node.inputs[index]].start)

    def made(self, name: str) -> Box:
        """Return the samples of a storage that a value's node computes."""
        computed = self.geometry.frames[name].computed
        return computed.shifted(ZERO - self.locations[name].start)

    def whole(self, name: str, start: Vec3) -> Box:
        """Return where a whole value lies, counted from the first sample of its storage.

        Args:
            name: the value.
            start: the value's samples before the block.
        """
        whole = Box(ZERO, self.geometry.sizes[name])
        return whole.shifted(ZERO - start - self.locations[name].start)

    def inside(self, name: str, start: Vec3) -> Box:
        """Return the samples of a storage that lie within a whole value, as far as computed.

        Args:
            name: the value.
            start: the value's samples before the block.

        Returns:
            a box that may be empty.
        """
        whole, computed = self.whole(name, start), self.made(name)
        low = computed.start.maximum(whole.start).minimum(computed.stop)
        return Box(low, computed.stop.minimum(whole.stop).maximum(low))


def storage_for(network: Network, patch: Vec3) -> BlockStorage | None:
    """Return the storages of a block of an exact network, or None for a dense network."""
    return block_storage(network, patch) if network.is_exact else None


@lru_cache(maxsize=256)
def block_storage(network: Network, patch: Vec3) -> BlockStorage:
    """Return the storages of a block.

    Args:
        network: an exact network for a volume.
        patch: the output voxels of the block.
    """
    geometry = block_geometry(network, patch)
    uses = Counter([network.output, *(name for node in network.nodes for name in node.inputs)])
    summed = summed_convolutions(network)
    boxes: dict[str, Box] = {}
    found: dict[str, Location] = {}
    for node in reversed(network.nodes):
        if node.name not in found:
            boxes[node.name] = _own_box(node, geometry, found, summed.get(node.name))
            found[node.name] = Location(node.name, 0, boxes[node.name].start)
        at = found[node.name]
        first = at.first_map
        starts = [at.start + offset for offset in _offsets(node, geometry)]
        if node.name in summed:
            other = summed[node.name].other
            start = starts[node.inputs.index(other)]
            held = Box(start, start + boxes[at.storage].size)
            if geometry.frames[other].stored.within(held):
                found[other] = Location(at.storage, first, start)
                continue
        for name, start in zip(node.inputs, starts, strict=True):
            held = Box(start, start + boxes[at.storage].size)
            if _may_lie_in(node, name, held, network, geometry, uses, found):
                found[name] = Location(at.storage, first, start)
            first += network.maps[name] if isinstance(node.layer, Concat) else 0
    if INPUT not in found:
        stored = geometry.frames[INPUT].stored
        boxes[INPUT] = stored
        found[INPUT] = Location(INPUT, 0, stored.start)
    storages = {
        name: Storage(name, Shape5.of(1, network.maps[name], box.size))
        for name, box in boxes.items()
    }
    return BlockStorage(geometry, storages, found, network.maps)


def _own_box(
    node: Node,
    geometry: BlockGeometry,
    found: Mapping[str, Location],
    summed: SummedNodes | None,
) -> Box:
    """Return the samples of a value's own storage, with those of values that may lie in it.

    Args:
        node: the value's node.
        geometry: the samples of the values.
        found: the places of the values that have one.
        summed: the convolution that may add to another value, if the node is its sum.
    """
    box = geometry.frames[node.name].stored
    limit = MOST_GROWTH * box.size.volume
    for name, offset in zip(node.inputs, _offsets(node, geometry), strict=True):
        if isinstance(node.layer, Concat) or (summed and name == summed.other):
            grown = box.hull(geometry.frames[name].stored.shifted(ZERO - offset))
            if name != INPUT and name not in found and grown.size.volume <= limit:
                box = grown
    return box


def _offsets(node: Node, geometry: BlockGeometry) -> list[Vec3]:
    """Return the samples by which a node's reads of each input are ahead of its own samples."""
    made = geometry.frames[node.name].computed.start
    return [box.start - made for box in geometry.reads[node.name]]


def _may_lie_in(
    node: Node,
    name: str,
    held: Box,
    network: Network,
    geometry: BlockGeometry,
    uses: Mapping[str, int],
    found: Mapping[str, Location],
) -> bool:
    """Return whether an input of a node may lie in the storage of the node's value.

    Args:
        node: the node.
        name: the name of the input.
        held: the samples of the storage, counted from the first sample of the whole input.
        network: the network.
        geometry: the samples of the values.
        uses: how often each value is taken.
        found: the places of the values that have one.
    """
    if name == INPUT or name in found or not geometry.frames[name].stored.within(held):
        return False
    match node.layer:
        case Concat():
            return node.inputs.count(name) == 1
        case Affine() | Add() | Multiply():
            first = node.inputs.index(name) == 0 and node.inputs.count(name) == 1
            return first and uses[name] == 1 and network.maps[name] == network.maps[node.name]
        case _:
            return False
