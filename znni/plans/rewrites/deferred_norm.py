"""A norm of packed values that the layer after it applies to what it loads.

The norm works out its numbers, and changes no voxel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from znni.core.shapes import ZERO
from znni.network.layers import Conv, Normalize, PackedLayer
from znni.network.node import Node
from znni.plans.rewrites.block_steps import BlockSteps, Near, Rewrite


def rewrite(steps: BlockSteps, node: Node) -> Rewrite | None:
    """Return the norm and the layer after it; None if the rule does not match.

    No other layer reads the norm's value. The norm lies where its input does, so that no voxel
    changes.
    """
    norm, readers = steps.packed(node.name), steps.readers[node.name]
    if norm is None or not isinstance(node.layer, Normalize) or len(readers) != 1:
        return None
    gives = steps.step_of(readers[0].name)
    after = gives and steps.packed(gives)
    if not gives or not after or readers[0].inputs != (node.name,):
        return None
    storage, name = steps.storage, node.name
    before, at = storage.locations[node.inputs[0]], storage.locations[name]
    read = storage.geometry.reads[name][0].shifted(ZERO - before.start)
    where = (before.storage, before.first_map, read)
    if at.storage != name or where != (name, at.first_map, storage.computed_box(name)):
        return None
    applying = replace(after, norm=node.layer)
    return Rewrite({node.name: replace(norm, leaves=True), gives: applying})


def variants(operation: PackedLayer, near: Near) -> Iterator[PackedLayer]:
    """Yield a norm that leaves its voxels, and a layer that applies the norm before it."""
    found = [operation]
    match operation.layer, near.after:
        case Normalize(), (Conv(),):
            found.append(replace(operation, leaves=True))
    match near.before:
        case (Normalize() as norm,) if operation.reads:
            found += [replace(it, norm=norm) for it in found]
    yield from found[1:]
