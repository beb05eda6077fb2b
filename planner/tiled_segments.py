"""Segments of a tiled network's block: which steps are fused, packed, or add up maps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import inf

from planner.bare_steps import bare_step
from planner.step_options import StepOptions
from znni.core.processors import HOST, DeviceKind
from znni.network.node import Node
from znni.plans.block_storage import BlockStorage
from znni.plans.rewrites.block_steps import BlockSteps, Rewrite
from znni.plans.rewrites.fusion import Fusion, takes_of
from znni.plans.rewrites.packed_rules import RULES
from znni.plans.rewrites.packed_values import packed_values
from znni.plans.segments import Segment, Step


def tiled_segments(
    nodes: tuple[Node, ...],
    storage: BlockStorage,
    fusible: Collection[Fusion],
    options: StepOptions,
    device: DeviceKind = HOST,
    *,
    parts: int = 0,
    fusible_packed: Collection[Fusion] = (),
) -> Iterator[Segment]:
    """Yield the segments of a tiled network's block that may be fastest, whose steps are bare.

    The layers of a fusion are one step or several, whatever the other steps are. In the first
    segment they are one step if that is faster. In the second all are one step, and in the third
    none is. These two are not faster, but may take less memory.

    In the last two segments as many values as possible are packed, if any can be. There, each rule
    for packed steps is applied if that is faster, before fusions and after them. In the first of
    the two, each fusion is one step if that is faster. In the other one none is, because a value
    between two layers may be smaller than what they take and give.

    Args:
        nodes: the nodes of the network.
        storage: the arrays of the block.
        fusible: the fusions that some primitive computes if no value is packed.
        options: the source of the steps' times.
        device: the device of all steps.
        parts: the parts of a packed number; 0 if no values may be packed between the layers.
        fusible_packed: the fusions to try if values are packed.
    """
    alone = BlockSteps.layer_by_layer(nodes, storage)
    every = fused(alone, fusible, options, always=True)
    ways = [fused(alone, fusible, options), every, alone]
    if parts and (rewrite := packed_values(alone, options.prices.applies, parts)).new:
        packed = with_rules(alone.after(rewrite), options)
        ways += [with_rules(fused(packed, fusible_packed, options), options), packed]
    tried = list[BlockSteps]()
    for steps in ways:
        if steps not in tried:
            tried.append(steps)
            yield tiled_segment(steps, device)


def tiled_segment(steps: BlockSteps, device: DeviceKind = HOST) -> Segment:
    """Return the segment of a tiled network's block, whose steps are bare."""
    bare = tuple(_bare(steps, name) for name in steps.operations)
    return Segment(device, steps.storage.items, bare, is_tiled=True)


def _bare(steps: BlockSteps, name: str) -> Step:
    """Return the bare step that gives a value."""
    operation, storage = steps.operations[name], steps.storage
    nodes = steps.nodes_of(operation)
    shape = storage.shape_taken(nodes[0].name, nodes[0].inputs)
    return bare_step(operation, shape, storage.computed_shape(name), takes_of(nodes))


def fused(
    steps: BlockSteps, fusible: Iterable[Fusion], options: StepOptions, *, always: bool = False
) -> BlockSteps:
    """Return steps in which each fusion is one step if that is faster.

    Args:
        steps: the steps.
        fusible: the fusions.
        options: the source of the steps' times.
        always: whether they are also one step if that is slower.
    """
    for fusion in fusible:
        steps = _after(steps, steps.fused(fusion), options, always=always)
    return steps


def with_rules(steps: BlockSteps, options: StepOptions) -> BlockSteps:
    """Return steps of packed values after all rules for such, each applied where that is faster."""
    for rule in RULES:
        for node in steps.nodes:
            steps = _after(steps, rule.rewrite(steps, node), options)
    return steps


def _after(
    steps: BlockSteps, rewrite: Rewrite | None, options: StepOptions, *, always: bool = False
) -> BlockSteps:
    """Return steps after a rewrite that primitives compute, if it is faster or always wanted."""
    if rewrite is None:
        return steps
    after = steps.after(rewrite)
    new = (_bare(after, name) for name in rewrite.new)
    old = (_bare(steps, name) for name in (*rewrite.gone, *rewrite.new))
    seconds = least_seconds(new, options)
    wanted = seconds < inf and (always or seconds < least_seconds(old, options))
    return after if wanted else steps


def least_seconds(steps: Iterable[Step], options: StepOptions) -> float:
    """Return the least seconds of bare steps; infinite if no primitive computes one of them."""
    options_of = (options.whole(step, in_place=True) for step in steps)
    return sum(each[0].seconds if each else inf for each in options_of)
