"""Bounds on the memory of patches: which may fit, and which poolings make single fragments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.overhead import Overhead
from znni.core.processors import GPU, HOST, DeviceKind, has_own_memory
from znni.core.shapes import FLOAT_BYTES
from znni.machine.machine import Machine
from znni.network.layers import Concat, Conv, Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.stage import Counts
from znni.plans.totals import Numbers

Bools: TypeAlias = "NDArray[np.bool_]"


def most_for_arrays(
    machine: Machine,
    overhead: Overhead,
    device: DeviceKind,
    network: Network,
    counts: Counts[Numbers],
) -> Numbers:
    """Return bytes that the layers' arrays do not exceed on a device, for each of several patches.

    Args:
        machine: the machine, whose memory is the limit.
        overhead: the memory that a run takes beside its layers.
        device: the device.
        network: the network.
        counts: the counts of each patch.
    """
    if not has_own_memory(device):
        weights = FLOAT_BYTES * network.held_parameters
        alone = overhead.setting(network, (HOST,))
        with_gpu = overhead.setting(network, (HOST, GPU))
        blocks = np.minimum(
            overhead.host_blocks(alone, counts), overhead.host_blocks(with_gpu, counts)
        )
        return machine.host.memory - overhead.process - weights - blocks
    memory = sum(it.memory for it in machine.gpus[:1])
    run = overhead.setting(network, (GPU,))
    if network.is_tiled:  # otherwise the first layers may be on the host
        counts = counts._replace(first_input=counts.at_once)
    return memory - overhead.gpu - overhead.gpu_blocks(run, counts)


def slowed_poolings(
    network: Network, device: DeviceKind, voxels: Mapping[str, Numbers], most: Numbers
) -> dict[str, Bools]:
    """Return the patches for which the poolings of a sliding network make one fragment at a time.

    There is no memory for the input and all fragments of a single item then, in any segments.

    Args:
        network: the network.
        device: the device of the poolings. The host holds the network's input beside them.
        voxels: the voxels of each value's map, of all its fragments together.
        most: the bytes that the layers' arrays do not exceed.
    """
    if network.is_tiled:
        return {}
    values = {name: network.maps[name] * voxels[name] for name in voxels}
    items, slowed = most_items(network), dict[str, Bools]()
    for node in network.nodes:
        if isinstance(node.layer, Pool):
            (taken,) = node.inputs
            held = 0.0 if has_own_memory(device) or taken == INPUT else values[INPUT]
            arrays = held + (values[taken] + values[node.name]) / items[node.name]
            slowed[node.name] = FLOAT_BYTES * arrays > most
    return slowed


def most_items(network: Network) -> dict[str, int]:
    """Return the most items that each layer of a sliding network takes at once, by name."""
    items, items_of = 1, dict[str, int]()
    for node in network.nodes:
        items_of[node.name] = items
        if isinstance(node.layer, Pool):
            items *= node.layer.window.volume
    return items_of


def least_bytes_of_arrays(
    network: Network, voxels: Mapping[str, Numbers], value_bytes: int
) -> Numbers:
    """Return bytes that the arrays of a tiled network's block take at least, in any plan.

    Args:
        network: the network.
        voxels: the voxels of each value's map, for each of several patches.
        value_bytes: the least bytes of a value between layers.
    """
    values = {name: network.maps[name] * voxels[name] for name in voxels}
    most = 0.0 * values[INPUT]
    for names in _held_at_once(network):
        most = np.maximum(most, sum(values[name] for name in names))
    return FLOAT_BYTES * values[INPUT] + value_bytes * most


def _held_at_once(network: Network) -> list[set[str]]:
    """Return the values beside the network's input that are in memory while a convolution runs.

    No two of these values share memory, in any plan. So two kinds of values are left out: values
    that are joined to another one of them, and values that a fusion does not store.
    """
    layers = {node.name: node for node in network.nodes}
    fused = {name for it in fusions(network).values() for name in it.between}

    def joined(name: str) -> set[str]:
        """Return the values that a value may consist of."""
        node = layers.get(name)
        if node is None or not isinstance(node.layer, Concat):
            return set()
        return set(node.inputs).union(*map(joined, node.inputs))

    held = []
    for node, alive in zip(network.nodes, network.alive, strict=False):
        if isinstance(node.layer, Conv):
            names = {*alive, node.name} - fused - {INPUT}
            held.append(names.difference(*map(joined, names)))
    return held
