"""A bound on what a sweep keeps from block to block, whatever its segments are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from znni.core.shapes import AXES, FLOAT_BYTES, extent
from znni.network.layers import Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.plans.swept import planes_kept
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
    for node in network.nodes if network.is_swept else ():
        (taken,) = node.inputs
        maps = min(maps, network.maps[taken]) if taken != INPUT else 0
        planes = planes_kept(node.layer, axis) * extent(network.strides[taken], axis)
        if maps:
            nbytes = nbytes + FLOAT_BYTES * maps * voxels[taken] / new * planes
        if isinstance(node.layer, Pool):
            maps = network.maps[node.name]
    return nbytes
