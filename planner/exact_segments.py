"""Segments of an exact network's block: which steps are fused, packed, or add up maps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Any

from planner.bare_steps import bare_step
from planner.step_options import StepOptions
from znni.machine.machine import DeviceKind
from znni.network.layers import PackedLayer
from znni.network.network import Network
from znni.network.node import Node
from znni.plans.block_storage import BlockStorage
from znni.plans.packed import left_norms, packed_operations, summing_norms
from znni.plans.segments import Segment, Step
from znni.plans.summed import SummedNodes, summed_convolutions

NOT_PACKED: Mapping[str, PackedLayer] = MappingProxyType({})


def fusible_sums(
    network: Network, options: StepOptions, *, parts: int = 0
) -> tuple[SummedNodes, ...]:
    """Return the summed convolutions that some primitive computes as one step.

    Args:
        network: the network.
        options: the steps to choose from.
        parts: the parts of a packed number; 0 if no values are packed.
    """
    return tuple(
        nodes
        for nodes in summed_convolutions(network).values()
        if options.computes(
            nodes.packed(parts) if parts else nodes.operation, nodes.operation.conv.in_features
        )
    )


def exact_segments(
    nodes: tuple[Node, ...],
    storage: BlockStorage,
    summed: Collection[SummedNodes],
    options: StepOptions,
    device: DeviceKind = "cpu",
    *,
    parts: int = 0,
    packed_summed: Collection[SummedNodes] = (),
) -> Iterator[Segment]:
    """Yield the segments of an exact network's block that may be fastest, whose steps are bare.

    A convolution and its sum are one step or two, whatever the other steps are. In the first
    segment each pair is one step if that is faster. In the second all pairs are one step, and in
    the third none is. These two are not faster, but may take less memory.

    In the last segment as many values as possible are packed, if any can be. There, each sum is one
    step with its convolution if that is faster, because it never takes more memory. Convolutions
    add up maps for the norms after them, and heads apply the norms before them, if that is faster.

    Args:
        nodes: the nodes of the network.
        storage: the arrays of the block.
        summed: the summed convolutions that may be one step.
        options: the source of the steps' times.
        device: the device of all steps.
        parts: the parts of a packed number; 0 if no values may be packed between the layers.
        packed_summed: the summed convolutions that may be one step if values are packed.
    """
    possible = {it.add.name: it for it in summed if storage.sums_in_place(it)}
    faster = {name: it for name, it in possible.items() if _is_faster(it, storage, options)}
    choices: list[Mapping[str, SummedNodes]] = []
    for choice in (faster, possible, dict[str, SummedNodes]()):
        if choice not in choices:
            choices.append(choice)
            yield exact_segment(nodes, storage, choice, device)
    if parts and (packed := packed_operations(nodes, storage, options.applies, parts)):
        packed = with_norms(packed, nodes, storage, options)
        able = (it for it in packed_summed if it.add.name in packed and packed[it.conv.name].reads)
        in_place = {it.add.name: it for it in able if storage.sums_in_place(it)}
        faster = {
            name: it for name, it in in_place.items() if _is_faster(it, storage, options, packed)
        }
        yield exact_segment(nodes, storage, faster, device, packed)


def exact_segment(
    nodes: tuple[Node, ...],
    storage: BlockStorage,
    summed: Mapping[str, SummedNodes],
    device: DeviceKind = "cpu",
    packed: Mapping[str, PackedLayer] = NOT_PACKED,
) -> Segment:
    """Return the segment of an exact network's block, whose steps are bare.

    Args:
        nodes: the nodes of the network.
        storage: the arrays of the block.
        summed: the convolutions that are one step with their sum, by the sum's name.
        device: the device of all steps.
        packed: the steps that read or write packed values, by name.
    """
    convolutions = {it.conv.name for it in summed.values()}
    steps = []
    for node in storage.steps_of(nodes):
        if node.name in summed:
            steps.append(_summed_step(summed[node.name], storage, packed))
        elif node.name not in convolutions:
            steps.append(_block_step(node, storage, packed.get(node.name)))
    return Segment(device, storage.items, tuple(steps), is_exact=True)


def _block_step(node: Node, storage: BlockStorage, packed: PackedLayer | None = None) -> Step:
    """Return the bare step of one layer of a block, whose values may be packed."""
    shape = storage.shape_taken(node.name, node.inputs)
    operation = packed or node.layer.local
    return bare_step(operation, shape, storage.shape_made(node.name), node.inputs)


def _summed_step(
    nodes: SummedNodes, storage: BlockStorage, packed: Mapping[str, PackedLayer] = NOT_PACKED
) -> Step:
    """Return the bare step of a convolution with its sum, whose values may be packed."""
    shape = storage.shape_taken(nodes.conv.name, nodes.conv.inputs)
    add = packed.get(nodes.add.name)
    operation = nodes.packed(add.parts) if add else nodes.operation
    return bare_step(operation, shape, storage.shape_made(nodes.add.name), nodes.takes)


def with_norms(
    packed: Mapping[str, PackedLayer],
    nodes: tuple[Node, ...],
    storage: BlockStorage,
    options: StepOptions,
) -> Mapping[str, PackedLayer]:
    """Return packed steps in which layers before and after norms do a part of these.

    Convolutions add up maps, and layers apply norms to what they load, wherever that is faster.

    Args:
        packed: the steps, by name.
        nodes: the nodes of the network.
        storage: the arrays of the block.
        options: the source of the steps' times.
    """
    known = {node.name: node for node in nodes}

    def seconds(operations: Mapping[str, PackedLayer]) -> float:
        found = (
            options.whole(_block_step(known[name], storage, operation), in_place=True)
            for name, operation in operations.items()
        )
        return sum(steps[0].seconds if steps else inf for steps in found)

    changes: list[dict[str, dict[str, Any]]] = []
    for norm, conv in summing_norms(packed, storage, nodes):
        changes.append({conv: {"sums": True}, norm.name: {"sums": True}})
    for norm, after in left_norms(packed, storage, nodes):
        changes.append({norm.name: {"leaves": True}, after.name: {"norm": norm.layer}})
    found = dict(packed)
    for change in changes:
        then = {name: replace(found[name], **values) for name, values in change.items()}
        if seconds(then) < seconds({name: found[name] for name in change}):
            found.update(then)
    return found


def _is_faster(
    nodes: SummedNodes,
    storage: BlockStorage,
    options: StepOptions,
    packed: Mapping[str, PackedLayer] = NOT_PACKED,
) -> bool:
    """Return whether a convolution and its sum are faster as one step than as two."""
    parts = (_block_step(it, storage, packed.get(it.name)) for it in (nodes.conv, nodes.add))
    one, *two = (
        options.whole(step, in_place=True)
        for step in (_summed_step(nodes, storage, packed), *parts)
    )
    if not one or not all(two):
        return bool(one)
    return one[0].seconds < sum(found[0].seconds for found in two)
