"""Fusions: layers that follow each other and may be one step, without the values between them."""

from __future__ import annotations

from typing import NamedTuple

from znni.network.layers import FusedOperation
from znni.network.node import Node


class Fusion(NamedTuple):
    """Layers of a network that may be one step.

    Attributes:
        nodes: the nodes, in order. Each takes the value of the one before it, and no other does.
        operation: all layers as one operation.
    """

    nodes: tuple[Node, ...]
    operation: FusedOperation

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers."""
        return tuple(node.name for node in self.nodes)

    @property
    def between(self) -> tuple[str, ...]:
        """The names of the values that the step does not store."""
        return self.layers[:-1]

    @property
    def gives(self) -> str:
        """The name of the value that the step gives."""
        return self.nodes[-1].name

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of the values that the step takes."""
        return takes_of(self.nodes)

    @property
    def overwrites(self) -> str | None:
        """The name of the value in whose memory the output must lie, if there is one."""
        return self.takes[-1] if self.operation.adds_in_place else None


def takes_of(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """Return the names of the values that some nodes take and do not give, in order."""
    given = {node.name for node in nodes}
    return tuple(name for node in nodes for name in node.inputs if name not in given)
