"""All rules by which a step of packed values does a part of another one, in the order of their use.

Each rule is a module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from znni.network.layers import PackedLayer
from znni.network.node import Node
from znni.plans.array_layout import packed_storages
from znni.plans.block_storage import BlockStorage
from znni.plans.rewrites import deferred_norm, summing_norm
from znni.plans.rewrites.block_steps import BlockSteps, Near, Rewrite
from znni.plans.segments import Step


class PackedRule(Protocol):
    """The functions of a rule."""

    def rewrite(self, steps: BlockSteps, node: Node) -> Rewrite | None:
        """Return what replaces the step of a node and others; None if the rule does not match."""

    def variants(self, operation: PackedLayer, near: Near) -> Iterator[PackedLayer]:
        """Yield what the rule may make of a layer's operation, for lower bounds on its time."""


RULES: tuple[PackedRule, ...] = (summing_norm, deferred_norm)


def follow_rules(steps: Iterable[Step], nodes: tuple[Node, ...], storage: BlockStorage) -> bool:
    """Return whether the steps of a block agree which values are packed, and follow the rules."""
    steps = tuple(steps)
    packed = packed_storages(steps, storage)
    given = BlockSteps({step.gives: step.operation for step in steps}, nodes, storage)
    made = given
    for step in steps:
        reads = writes = 0
        if it := given.packed(step.gives):
            reads, writes = it.reads * it.parts, it.writes * it.parts
            plain = PackedLayer(it.layer, it.reads, it.writes, parts=it.parts)
            made = made.after(Rewrite({step.gives: plain}))
        parts = [packed.get(storage.locations[name].storage, 0) for name in step.takes]
        if any(it != reads for it in parts):
            return False
        if packed.get(storage.locations[step.gives].storage, 0) != writes:
            return False
    for rule in RULES:
        for node in nodes:
            rewrite = rule.rewrite(made, node)
            if rewrite and all(_is_part_of(rewrite, name, made, given) for name in rewrite.new):
                made = made.after(rewrite)
    return made == given


def _is_part_of(rewrite: Rewrite, name: str, before: BlockSteps, after: BlockSteps) -> bool:
    """Return whether all that a rewrite changes of a step is so afterwards."""
    old, new, wanted = (vars(it[name]) for it in (before.operations, rewrite.new, after.operations))
    return all(wanted.get(field) == value for field, value in new.items() if old[field] != value)
