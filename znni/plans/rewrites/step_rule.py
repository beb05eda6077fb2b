"""The protocol of a rule by which steps of a block compute a part of what others did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from znni.network.layers import Layer, PackedLayer
from znni.network.node import Node
from znni.plans.rewrites.block_steps import BlockSteps, Rewrite


class Neighbours(NamedTuple):
    """The layers around a layer.

    Attributes:
        before: the layers whose values it takes.
        after: the layers that take its value.
    """

    before: tuple[Layer, ...]
    after: tuple[Layer, ...]


class StepRule(Protocol):
    """A rule for steps that take or make packed values."""

    def rewrite(self, steps: BlockSteps, node: Node) -> Rewrite | None:
        """Return what replaces the step of a node and others; None if the rule does not match."""

    def variants(self, operation: PackedLayer, near: Neighbours) -> Iterator[PackedLayer]:
        """Yield the operations that may replace one of a layer, for lower bounds on its time."""
