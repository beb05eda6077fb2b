"""The operations of a tiled network's block, and rewrites of some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from znni.network.layers import FusedOperation, Layer, Operation, PackedLayer, layers_of
from znni.network.node import Node, readers_of
from znni.plans.block_storage import BlockStorage
from znni.plans.rewrites.fusion import Fusion


class Near(NamedTuple):
    """The layers whose values a layer takes, and those that take its value."""

    before: tuple[Layer, ...]
    after: tuple[Layer, ...]


class Rewrite(NamedTuple):
    """Operations in place of others, which compute the same.

    Attributes:
        new: the new operations, by the names of the values that they give.
        gone: the names of the values that no step gives any more.
    """

    new: Mapping[str, Operation]
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlockSteps:
    """The operations of a block. Some may compute several layers, or take packed values.

    Attributes:
        operations: the operations in order, by the names of the values that they give.
        nodes: the nodes of the network.
        storage: the arrays of the block.
    """

    operations: Mapping[str, Operation]
    nodes: tuple[Node, ...]
    storage: BlockStorage

    @classmethod
    def layer_by_layer(cls, nodes: tuple[Node, ...], storage: BlockStorage) -> BlockSteps:
        """Return the operations of a block in which each step computes one layer."""
        operations = {node.name: node.layer.local for node in storage.steps_of(nodes)}
        return cls(operations, nodes, storage)

    @cached_property
    def readers(self) -> Mapping[str, list[Node]]:
        """The nodes that take each value, by the value's name."""
        return readers_of(self.nodes)

    @cached_property
    def _by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    def nodes_of(self, operation: Operation) -> tuple[Node, ...]:
        """Return the nodes that an operation computes."""
        return tuple(self._by_name[layer.name] for layer in layers_of(operation))

    def packed(self, name: str) -> PackedLayer | None:
        """Return the operation that gives a value, if it takes or makes packed values."""
        found = self.operations.get(name)
        return found if isinstance(found, PackedLayer) else None

    def step_of(self, layer: str) -> str | None:
        """Return the value that the step gives whose first layer has a name; None if none has."""
        found = (name for name, it in self.operations.items() if layers_of(it)[0].name == layer)
        return next(found, None)

    def after(self, rewrite: Rewrite) -> BlockSteps:
        """Return the operations after a rewrite."""
        changed = {**self.operations, **rewrite.new}
        return replace(
            self, operations={name: it for name, it in changed.items() if name not in rewrite.gone}
        )

    def fused(self, fusion: Fusion) -> Rewrite | None:
        """Return the rewrite by which one step computes the layers of a fusion.

        It is None if their values lie elsewhere, or if the steps do not compute these layers alone.
        It is also None if one of them takes or makes packed values, and not all do both.
        """
        first = self.packed(fusion.layers[0])
        parts = first.parts if first else 0
        alone = {node.name: in_parts(node.layer.local, parts) for node in fusion.nodes}
        found = {name: self.operations.get(name) for name in alone}
        if found != alone or not self.storage.allows(fusion):
            return None
        return Rewrite({fusion.gives: in_parts(fusion.operation, parts)}, fusion.between)


def in_parts(layer: Layer | FusedOperation, parts: int) -> Operation:
    """Return an operation on packed values whose numbers have some parts; on others for 0 parts."""
    return PackedLayer(layer, reads=True, writes=True, parts=parts) if parts else layer
