"""Packed values of an exact network's block: which values lie in float16 between the layers.

A convolution reads and writes packed values or others. All other layers take and make the same
kind. So values that such layers connect are packed together, or none of them is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from znni.core.shapes import Shape5
from znni.machine.packed_arrays import GROUP, in_whole_groups
from znni.network.layers import Concat, Conv, Normalize, PackedLayer
from znni.network.node import INPUT, Node, readers_of
from znni.plans.block_storage import ZERO, BlockStorage
from znni.plans.segments import Step

# Maps that a product of tensor cores sums over. Values that are joined have whole sums, because
# each has a scale of its own.
TOGETHER = 16

# A function that tells whether a packed layer can be computed on an input of a shape.
Computes = Callable[[PackedLayer, Shape5], bool]


def packed_operations(
    nodes: tuple[Node, ...], storage: BlockStorage, computes: Computes, parts: int
) -> Mapping[str, PackedLayer]:
    """Return the steps that read or write packed values, by name, if as many as can be are packed.

    The network's input and output are not packed.

    Args:
        nodes: the nodes of the network.
        storage: the arrays of the block.
        computes: tells which packed layers can be computed.
        parts: the parts of a packed number.
    """
    steps = storage.steps_of(nodes)
    kinds = _Kinds(storage)
    for node in steps:
        if not isinstance(node.layer, Conv):
            kinds.join((node.name, *node.inputs))
    kinds.forbid((INPUT, nodes[-1].name))
    for node in nodes:
        maps = [storage.maps[name] for name in node.inputs]
        starts_group = storage.locations[node.name].first_map % GROUP == 0
        if not (starts_group and _fill_groups(storage.maps[node.name])):
            kinds.forbid((node.name,))
        if isinstance(node.layer, Concat) and any(count % TOGETHER for count in maps[:-1]):
            kinds.forbid(node.inputs)
    found: dict[str, PackedLayer] = {}
    wrong = True
    while wrong:
        wrong, found = False, {}
        for node in steps:
            reads, writes = kinds.packs(node.inputs[0]), kinds.packs(node.name)
            if reads or writes:
                operation = PackedLayer(node.layer.local, reads, writes, parts=parts)
                if not computes(operation, storage.shape_taken(node.name, node.inputs)):
                    kinds.forbid((node.name, *node.inputs))
                    wrong = True
                found[node.name] = operation
    return found


def _fill_groups(maps: int) -> bool:
    """Return whether maps fill more than half of their groups. Else packed values save no bytes."""
    return 2 * maps > in_whole_groups(maps)


def summing_norms(
    packed: Mapping[str, PackedLayer], storage: BlockStorage, nodes: Iterable[Node]
) -> Iterator[tuple[Node, str]]:
    """Yield norms of packed values, each with the convolution before it that may add up its maps.

    Args:
        packed: the steps that read or write packed values, by name.
        storage: the arrays of the block.
        nodes: the nodes of the network.
    """
    for node in nodes:
        if not isinstance(node.layer, Normalize) or node.name not in packed:
            continue
        (name,) = node.inputs
        made = packed.get(name)
        if made and isinstance(made.layer, Conv) and norms_whole(storage, name, node.name):
            yield node, name


def left_norms(
    packed: Mapping[str, PackedLayer], storage: BlockStorage, nodes: Iterable[Node]
) -> Iterator[tuple[Node, Node]]:
    """Yield norms of packed values, each with the layer that may apply it to what it loads.

    No other layer reads the norm's value. The norm lies where its input does, so that no voxel
    changes.

    Args:
        packed: the steps that read or write packed values, by name.
        storage: the arrays of the block.
        nodes: the nodes of the network.
    """
    nodes = tuple(nodes)
    readers = readers_of(nodes)
    for node in nodes:
        if isinstance(node.layer, Normalize) and node.name in packed:
            after = readers[node.name]
            if len(after) != 1 or after[0].name not in packed:
                continue
            if after[0].inputs == (node.name,) and stays(storage, node.inputs[0], node.name):
                yield node, after[0]


def stays(storage: BlockStorage, name: str, norm: str) -> bool:
    """Return whether a norm lies in its own storage, and there where its input does."""
    before, at = storage.locations[name], storage.locations[norm]
    read = storage.geometry.reads[norm][0].shifted(ZERO - before.start)
    where = (before.storage, before.first_map, read)
    return at.storage == norm and where == (at.storage, at.first_map, storage.made(norm))


def norms_whole(storage: BlockStorage, name: str, norm: str) -> bool:
    """Return whether a norm reads all samples that the step of a value computes, and no others."""
    geometry = storage.geometry
    return geometry.reads[norm][0] == geometry.frames[name].computed


def packed_storages(steps: Iterable[Step], storage: BlockStorage) -> Mapping[str, int]:
    """Return the storages whose values are packed, with the parts of their numbers."""
    return {
        storage.locations[step.gives].storage: step.operation.parts
        for step in steps
        if isinstance(step.operation, PackedLayer) and step.operation.writes
    }


def reads_what_is_made(steps: Iterable[Step], storage: BlockStorage) -> bool:
    """Return whether all steps agree which values are packed, added up, or to be normalized."""
    steps = tuple(steps)
    packed = packed_storages(steps, storage)
    added_up = {step.gives for step in steps if _has_sums(step, Conv)}
    left = {
        step.gives: step.on_float32
        for step in steps
        if isinstance(step.operation, PackedLayer) and step.operation.leaves
    }
    read = Counter(name for step in steps for name in step.takes)

    def parts(name: str) -> int:
        return packed.get(storage.locations[name].storage, 0)

    for step in steps:
        operation, reads, writes, norm = step.operation, 0, 0, None
        if isinstance(operation, PackedLayer):
            reads, writes = operation.reads * operation.parts, operation.writes * operation.parts
            norm = operation.norm
        if _has_sums(step, Normalize):
            (name,) = step.takes
            if name not in added_up or not norms_whole(storage, name, step.gives):
                return False
        if step.gives in left and (
            read[step.gives] != 1 or not stays(storage, step.takes[0], step.gives)
        ):
            return False
        if [left[name] for name in step.takes if name in left] != ([norm] if norm else []):
            return False
        if parts(step.gives) != writes or any(parts(it) != reads for it in step.takes):
            return False
    return True


def _has_sums(step: Step, kind: type[Conv] | type[Normalize]) -> bool:
    operation = step.operation
    return (
        isinstance(operation, PackedLayer) and operation.sums and isinstance(operation.layer, kind)
    )


class _Kinds:
    """The storages of values, of which some must be of one kind, and some must not be packed."""

    def __init__(self, storage: BlockStorage) -> None:
        self._storage = storage
        self._same = {name: name for name in storage.storages}
        self._forbidden: set[str] = set()

    def _first(self, value: str) -> str:
        """Return the storage that stands for all of the kind of a value."""
        name = self._storage.locations[value].storage
        while self._same[name] != name:
            name = self._same[name]
        return name

    def join(self, values: Iterable[str]) -> None:
        """Make values of one kind."""
        first, *others = values
        for other in others:
            self._same[self._first(other)] = self._first(first)

    def forbid(self, values: Iterable[str]) -> None:
        """Forbid to pack values, and all of their kind."""
        self._forbidden.update(map(self._first, values))

    def packs(self, value: str) -> bool:
        """Return whether a value may be packed."""
        return self._first(value) not in self._forbidden
