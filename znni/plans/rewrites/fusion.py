"""Fusions: layers that follow each other and may be one step, without the values between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from znni.network.layers import FusedOperation
from znni.network.network import Network
from znni.network.node import Node, readers_of

# Returns the operation that replaces some layers of a network; None if they do not match.
Replacement: TypeAlias = Callable[[Network, tuple[Node, ...]], FusedOperation | None]


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


@dataclass(frozen=True)
class FusionRule:
    """A rule by which layers that follow each other may be one step.

    Attributes:
        count: the number of layers.
        replacement: the function that returns the operation of all layers.
    """

    count: int
    replacement: Replacement

    def matches(self, network: Network) -> Iterator[Fusion]:
        """Yield the layers of a network that the rule replaces, in their order.

        Each takes the value of the layer right before it. That value has no other reader, and is
        not the network's output.
        """
        readers = readers_of(network.nodes)
        for end in range(self.count, len(network.nodes) + 1):
            nodes = network.nodes[end - self.count : end]
            follow = all(
                readers[before.name] == [after]
                and after.inputs.count(before.name) == 1
                and before.name != network.output
                for before, after in pairwise(nodes)
            )
            if follow and (operation := self.replacement(network, nodes)):
                yield Fusion(nodes, operation)


def takes_of(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """Return the names of the values that some nodes take and do not give, in order."""
    given = {node.name for node in nodes}
    return tuple(name for node in nodes for name in node.inputs if name not in given)
