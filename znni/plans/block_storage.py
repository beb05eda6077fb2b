"""Storages of a tiled network's block: the arrays in which its values lie.

Joins need no copies. A value that is concatenated is made in its place in the whole. A value that
only one later layer takes, voxel by voxel, gives its memory to that layer's output. If a fusion may
have its output in the memory of a value, that value gives its memory, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

from znni.core.shapes import ZERO, Axis, Box, Shape5, Vec3, extent, resized
from znni.network.frames import BlockGeometry
from znni.network.geometry import block_extents, block_geometry
from znni.network.layers import Concat, Conv, Model, PerMap
from znni.network.network import Network
from znni.network.node import INPUT, Node, readers_of
from znni.plans.rewrites.fusion import Fusion
from znni.plans.rewrites.fusion_rules import overwritten
from znni.plans.storage_sharing import SHARING, Location, _overlap, _Sharing, needs_zeros

# A value is made within a larger array only if the array then grows by no more than this factor.
MOST_GROWTH = 1.25


@dataclass(frozen=True)
class Storage:
    """An array of a block.

    Attributes:
        name: the name of the value that it is made for.
    """

    name: str
    shape: Shape5


@dataclass(frozen=True)
class BlockStorage:
    """The storages of a block, and where each value lies in them.

    Attributes:
        geometry: the samples of the values.
        storages: the storages by name, with the storage of the network's input.
        locations: the places of the values by name.
        maps: the numbers of maps of the values by name.
        cleared: the values whose samples outside the volume a layer reads as zeros.
        items: the items of every array: the windows that are computed at once.
        kept: the samples of a storage that a sweep keeps of a value for the next block, by name.
    """

    geometry: BlockGeometry
    storages: Mapping[str, Storage]
    locations: Mapping[str, Location]
    maps: Mapping[str, int]
    cleared: frozenset[str]
    items: int = 1
    kept: Mapping[str, Box] = field(default_factory=dict)

    def steps_of(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return the nodes that need a step: all but joins whose inputs are made in their place."""

        def in_place(node: Node) -> bool:
            at, offsets = self.locations[node.name], _offsets(node, self.geometry)
            firsts = places_in_join(node, self.maps, at.first_map)
            return all(
                self.locations[name] == Location(at.storage, first, at.start + offset)
                for (name, first), offset in zip(firsts, offsets, strict=True)
            )

        return tuple(it for it in nodes if not isinstance(it.layer, Concat) or not in_place(it))

    def allows(self, fusion: Fusion) -> bool:
        """Return whether one step may compute the layers of a fusion where their values lie."""
        whole = all(
            self.geometry.reads[after.name][after.inputs.index(before.name)]
            == self.geometry.frames[before.name].computed
            for before, after in pairwise(fusion.nodes)
        )
        if fusion.overwrites is None:
            return whole
        at = self.locations[fusion.gives].storage
        # The step stores some of its output before it has read all that its first layer takes.
        spoilt = any(
            _overlap(self.locations, self.maps, fusion.gives, name)
            for name in fusion.nodes[0].inputs
        )
        return whole and self.locations[fusion.overwrites].storage == at and not spoilt

    def shape_taken(self, name: str, takes: tuple[str, ...]) -> Shape5:
        """Return the shape of all that a node reads, as one array with the maps of its inputs.

        Args:
            name: the node's name.
            takes: the names of the values that it takes.
        """
        maps = sum(self.maps[taken] for taken in takes)
        return Shape5.of(self.items, maps, self.geometry.reads[name][0].size)

    def computed_shape(self, name: str) -> Shape5:
        """Return the shape of a node's value."""
        computed = self.geometry.frames[name].computed
        return Shape5.of(self.items, self.maps[name], computed.size)

    def read(self, node: Node, index: int) -> Box:
        """Return the samples of a storage that a node reads for one of its inputs.

        Args:
            node: the node.
            index: the number of the input.
        """
        box = self.geometry.reads[node.name][index]
        return box.shifted(ZERO - self.locations[node.inputs[index]].start)

    def computed_box(self, name: str) -> Box:
        """Return the samples of a storage that a value's node computes."""
        computed = self.geometry.frames[name].computed
        return computed.shifted(ZERO - self.locations[name].start)

    def fills_storage(self, name: str) -> bool:
        """Return whether a value's node computes all samples of the storage, so none lie between.

        The value may have some of the storage's maps.
        """
        return (
            self.computed_box(name).size == self.storages[self.locations[name].storage].shape.size
        )

    def whole(self, name: str, start: Vec3) -> Box:
        """Return where a whole value lies, counted from the first sample of its storage.

        Args:
            name: the value.
            start: the value's samples before the block.
        """
        whole = Box(ZERO, self.geometry.sizes[name])
        return whole.shifted(ZERO - start - self.locations[name].start)

    def inside(self, name: str, start: Vec3, joined: Sequence[str] = ()) -> Box:
        """Return the samples of a storage that lie within a whole value, as far as computed.

        Args:
            name: the value.
            start: the value's samples before the block.
            joined: the values of which it consists, if it is a join. Those that lie in it may have
                more samples, which later layers read.

        Returns:
            a box that may be empty.
        """
        whole, computed = self.whole(name, start), self.computed_box(name)
        for other in joined:
            if self.locations[other].storage == self.locations[name].storage:
                computed = computed.hull(self.computed_box(other))
        low = computed.start.maximum(whole.start).minimum(computed.stop)
        return Box(low, computed.stop.minimum(whole.stop).maximum(low))


def places_in_join(node: Node, counts: Mapping[str, int], first: int) -> Iterator[tuple[str, int]]:
    """Yield each input of a join with its place, which begins where the input before ends.

    Args:
        node: the join.
        counts: the maps of the values, or groups of maps, by name.
        first: the place of the first input.
    """
    for name in node.inputs:
        yield name, first
        first += counts[name]


def storage_for(network: Network, patch: Vec3) -> BlockStorage | None:
    """Return the storages of a block of a tiled network, or None for a sliding network."""
    return block_storage(network, patch) if network.is_tiled else None


def block_storage(network: Network, patch: Vec3) -> BlockStorage:
    """Return the storages of a block, or of the windows that are computed at once.

    Args:
        network: a tiled network for a volume.
        patch: the output voxels of the block. Windows are the same whatever it is.
    """
    extents = block_extents(network, patch)
    return _block_storage(network, extents, network.together, network.swept_along)


@lru_cache(maxsize=256)
def _block_storage(network: Network, patch: Vec3, items: int, swept: Axis | None) -> BlockStorage:
    """Return the storages of a block. Equal networks may differ in its items and its sweep."""
    geometry = block_geometry(network, patch)
    others, readers = overwritten(network), readers_of(network.nodes)
    sharing = _Sharing(network, geometry.sizes)
    boxes: dict[str, Box] = {}
    locations: dict[str, Location] = {}
    for node in reversed(network.nodes):
        if node.name not in locations:
            inside = _may_lie_inside(node, readers, others.get(node.name))
            boxes[node.name] = _own_box(node, geometry, locations, inside)
            locations[node.name] = Location(node.name, 0, boxes[node.name].start)
        if not isinstance(node.layer, SHARING):
            continue
        at = locations[node.name]
        starts = [at.start + offset for offset in _offsets(node, geometry)]
        if node.name in others:
            other = others[node.name]
            start = starts[node.inputs.index(other)]
            held = Box(start, start + boxes[at.storage].size)
            place = Location(at.storage, at.first_map, start)
            fits = geometry.frames[other].stored.within(held)
            if fits and sharing.allows(other, place, locations):
                locations[other] = place
                continue
        firsts = places_in_join(node, network.maps, at.first_map)
        for (name, first), start in zip(firsts, starts, strict=True):
            held = Box(start, start + boxes[at.storage].size)
            place = Location(at.storage, first, start)
            fits = geometry.frames[name].stored.within(held)
            if fits and name not in locations and sharing.may_take(node, name, place, locations):
                locations[name] = place
    if INPUT not in locations:
        stored = geometry.frames[INPUT].stored
        boxes[INPUT] = stored
        locations[INPUT] = Location(INPUT, 0, stored.start)
    storages = {
        name: Storage(name, Shape5.of(items, network.maps[name], box.size))
        for name, box in boxes.items()
    }
    cleared = _cleared(network)
    storage = BlockStorage(geometry, storages, locations, network.maps, cleared, items)
    return replace(storage, kept=_kept(network, storage, swept)) if swept else storage


def _kept(network: Network, storage: BlockStorage, axis: Axis) -> dict[str, Box]:
    """Return the samples of a storage that a sweep keeps of each value, before its new ones.

    They are those that readers of the value need. The inputs of a join that is made in place keep
    what readers of the join need.
    """
    first: dict[str, int] = {}  # the first plane of its storage that readers of a value need
    made = {node.name for node in storage.steps_of(network.nodes)}
    for node in reversed(network.nodes):
        for index, name in enumerate(node.inputs):
            planes = [extent(storage.read(node, index).start, axis)]
            if node.name not in made and node.name in first:
                planes.append(first[node.name])
            first[name] = min(first.get(name, planes[0]), *planes)
    kept = {}
    for name in made & first.keys():
        computed = storage.computed_box(name)
        if first[name] < extent(computed.start, axis):
            size = storage.storages[storage.locations[name].storage].shape.size
            start, stop = resized(ZERO, axis, first[name]), extent(computed.start, axis)
            kept[name] = Box(start, resized(size, axis, stop))
    return kept


def _may_lie_inside(
    node: Node, readers: Mapping[str, list[Node]], other: str | None
) -> Collection[str]:
    """Return the inputs that may lie in a value's storage, even with more samples than it has.

    Args:
        node: the value's node.
        readers: the nodes that take each value.
        other: the value in whose memory a fusion may have the node's value.
    """
    if isinstance(node.layer, Concat):
        return node.inputs
    in_place = isinstance(node.layer, PerMap) and len(readers[node.inputs[0]]) == 1
    return {*([other] if other else []), *(node.inputs if in_place else ())}


def _own_box(
    node: Node,
    geometry: BlockGeometry,
    found: Mapping[str, Location],
    inside: Collection[str],
) -> Box:
    """Return the samples of a value's own storage, with those of values that may lie in it.

    Args:
        node: the value's node.
        geometry: the samples of the values.
        found: the places of the values that have one.
        inside: the inputs that may lie in it, even with more samples.
    """
    box = geometry.frames[node.name].stored
    if not isinstance(node.layer, SHARING):
        return box
    limit = MOST_GROWTH * box.size.volume
    for name, offset in zip(node.inputs, _offsets(node, geometry), strict=True):
        if name in inside:
            grown = box.hull(geometry.frames[name].stored.shifted(ZERO - offset))
            if name != INPUT and name not in found and grown.size.volume <= limit:
                box = grown
    return box


def _offsets(node: Node, geometry: BlockGeometry) -> list[Vec3]:
    """Return the samples by which a node's reads of each input are ahead of its own samples."""
    start = geometry.frames[node.name].computed.start
    return [box.start - start for box in geometry.reads[node.name]]


def _cleared(network: Network) -> frozenset[str]:
    """Return the values whose samples outside the volume a layer reads as zeros.

    Any convolution reads them, because formats of numbers may depend on the largest of all. A layer
    that takes sample by sample makes samples outside from samples outside.
    """
    names: set[str] = set()
    for node in reversed(network.nodes):
        joined = isinstance(node.layer, Concat) and node.name in names
        if joined or isinstance(node.layer, Conv | Model) or needs_zeros(node.layer):
            names.update(node.inputs)
    return frozenset(names)
