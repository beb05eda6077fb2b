"""Bounds on what a sweep keeps and repeats, whatever its segments are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from znni.core.shapes import AXES, FLOAT_BYTES, Vec3, extent
from znni.network.layers import Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.plans.swept import planes_kept, runs_for_block
from znni.plans.totals import Number


def least_bytes_kept(
    network: Network, voxels: Mapping[str, Number], patch: Sequence[Number]
) -> Number:
    """Return the least bytes that a sweep keeps from block to block, in any segments.

    Layers up to a pooling may be computed again for each of its fragments. Then the input
    of the first such layer keeps the planes for all of them. The network's input keeps no planes,
    because it is read again.

    Args:
        network: the network.
        voxels: the new voxels of each value's map for a patch, of all its fragments together.
        patch: the output voxels of the patch, for each axis.
    """
    axis = network.sweep_axis
    new = patch[AXES.index(axis)]
    nbytes, maps = 0 * new, 0
    for node in network.nodes if _slides_and_sweeps(network) else ():
        (taken,) = node.inputs
        maps = min(maps, network.maps[taken]) if taken != INPUT else 0
        planes = planes_kept(node.layer, axis) * extent(network.strides[taken], axis)
        if maps:
            nbytes = nbytes + FLOAT_BYTES * maps * voxels[taken] / new * planes
        if isinstance(node.layer, Pool):
            maps = network.maps[node.name]
    return nbytes


def least_runs(network: Network, patch: Sequence[Number], output: Vec3) -> dict[str, Number]:
    """Return how often each value is computed at least for a block, in any segments.

    That is once without a sweep. The first block of a sweep's column needs planes before it, so its
    layers run several times. The result is the average over the column. Layers up to a pooling may
    be computed again for each of its fragments. Then they run for the planes that the pooling's
    readers need.

    Args:
        network: the network.
        patch: the output voxels of the patch, for each axis.
        output: the output voxels of the job.
    """
    axis = network.sweep_axis
    new = patch[AXES.index(axis)]
    column = -(-extent(output, axis) // new)
    once = 1 + 0 * new
    runs = dict.fromkeys((INPUT, *(node.name for node in network.nodes)), once)
    behind, after_pooling = 0, None
    for node in reversed(network.nodes if _slides_and_sweeps(network) else ()):
        if isinstance(node.layer, Pool):
            after_pooling = behind
        needed = behind if after_pooling is None else after_pooling
        runs[node.name] = runs_for_block(needed, new, column)
        stride = extent(network.strides[node.inputs[0]], axis)
        behind += planes_kept(node.layer, axis) * stride
    return runs


def _slides_and_sweeps(network: Network) -> bool:
    """Return whether a network slides in a sweep. For tiled networks there are no such bounds."""
    return network.is_swept and not network.is_tiled
