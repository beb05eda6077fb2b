"""A norm of packed values that the layer after it applies to what it loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from znni.network.layers import Conv, Normalize, PackedLayer
from znni.network.node import Node
from znni.plans.packed import stays
from znni.plans.rewrites.block_steps import BlockSteps, Rewrite
from znni.plans.rewrites.step_rule import Neighbours


class LeftNorm:
    """The rule: the norm works out its numbers, and leaves the voxels to the layer after it."""

    def rewrite(self, steps: BlockSteps, node: Node) -> Rewrite | None:
        """Return the norm and the layer after it; None if the rule does not match.

        No other layer reads the norm's value. The norm lies where its input does, so that no voxel
        changes.
        """
        norm, readers = steps.packed(node.name), steps.readers[node.name]
        if norm is None or not isinstance(node.layer, Normalize) or len(readers) != 1:
            return None
        after = steps.packed(readers[0].name)
        if after is None or readers[0].inputs != (node.name,):
            return None
        if not stays(steps.storage, node.inputs[0], node.name):
            return None
        applying = replace(after, norm=node.layer)
        return Rewrite({node.name: replace(norm, leaves=True), readers[0].name: applying})

    def variants(self, operation: PackedLayer, near: Neighbours) -> Iterator[PackedLayer]:
        """Yield a norm that leaves its voxels, and a layer that applies the norm before it."""
        found = [operation]
        match operation.layer, near.after:
            case Normalize(), (Conv(),):
                found.append(replace(operation, leaves=True))
        match near.before:
            case (Normalize() as norm,) if operation.reads:
                found += [replace(it, norm=norm) for it in found]
        yield from found[1:]
