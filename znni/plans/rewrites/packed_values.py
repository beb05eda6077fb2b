"""Packed values: which values of a tiled network's block lie in float16 between the layers.

A convolution reads and writes packed values or others. All other layers take and make the same
kind. So values that such layers connect are packed together, or none of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from znni.core.shapes import Shape5
from znni.machine.packed_arrays import GROUP, in_whole_groups
from znni.network.layers import Concat, Conv, PackedLayer
from znni.network.node import INPUT
from znni.plans.rewrites.block_steps import BlockSteps, Rewrite

# Maps that a product of tensor cores sums over. Values that are joined have whole sums, because
# each has a scale of its own.
TOGETHER = 16

# A function that tells whether a packed layer can be computed on an input of a shape.
Computes: TypeAlias = Callable[[PackedLayer, Shape5], bool]


def packed_values(steps: BlockSteps, computes: Computes, parts: int) -> Rewrite:
    """Return the steps that read or write packed values, if as many as can be are packed.

    The network's input and output are not packed.

    Args:
        steps: the steps of the block, each of which computes one layer.
        computes: tells which packed layers can be computed.
        parts: the parts of a packed number.
    """
    storage, nodes = steps.storage, steps.nodes
    computed = storage.steps_of(nodes)

    def storages(values: Iterable[str]) -> set[str]:
        return {storage.locations[value].storage for value in values}

    kinds = [storages((it.name, *it.inputs)) for it in computed if not isinstance(it.layer, Conv)]
    forbidden: set[str] = set()

    def forbid(values: Iterable[str]) -> None:
        """Forbid to pack values, and all that must be of their kind."""
        forbidden.update(storages(values))
        while more := [kind for kind in kinds if kind & forbidden and kind - forbidden]:
            forbidden.update(*more)

    forbid((INPUT, nodes[-1].name))
    for node in nodes:
        maps = [storage.maps[name] for name in node.inputs]
        starts_group = storage.locations[node.name].first_map % GROUP == 0
        if not (starts_group and _fill_groups(storage.maps[node.name])):
            forbid((node.name,))
        if isinstance(node.layer, Concat) and any(count % TOGETHER for count in maps[:-1]):
            forbid(node.inputs)
    found: dict[str, PackedLayer] = {}
    wrong = True
    while wrong:
        wrong, found = False, {}
        for node in computed:
            reads, writes = (
                not storages((name,)) & forbidden for name in (node.inputs[0], node.name)
            )
            if reads or writes:
                operation = PackedLayer(node.layer.local, reads, writes, parts=parts)
                if not computes(operation, storage.shape_taken(node.name, node.inputs)):
                    forbid((node.name, *node.inputs))
                    wrong = True
                found[node.name] = operation
    return Rewrite(found)


def _fill_groups(maps: int) -> bool:
    """Return whether maps fill more than half of their groups. Else packed values save no bytes."""
    return 2 * maps > in_whole_groups(maps)
