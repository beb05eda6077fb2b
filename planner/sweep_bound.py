"""A bound on what a sweep keeps from block to block, whatever its segments are."""

from __future__ import annotations

from collections.abc import Mapping

from znni.core.shapes import FLOAT_BYTES
from znni.network.layers import Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.plans.swept import planes_kept
from znni.plans.totals import Number


def least_bytes_kept(network: Network, voxels: Mapping[str, Number], new: Number) -> Number:
    """Return the least bytes that a sweep keeps from block to block, in any segments.

    Layers up to a pooling may be computed again for each of its fragments. Then the input
    of the first such layer keeps the planes for all of them. The network's input keeps no planes,
    because it is read again.

    Args:
        network: the network.
        voxels: the new voxels of each value's map for a patch, of all its fragments together.
        new: the output planes of the patch.
    """
    nbytes, maps = 0 * new, 0
    for node in network.nodes if network.is_swept else ():
        (taken,) = node.inputs
        maps = min(maps, network.maps[taken]) if taken != INPUT else 0
        planes = planes_kept(node.layer) * network.strides[taken].z
        if maps:
            nbytes = nbytes + FLOAT_BYTES * maps * voxels[taken] / new * planes
        if isinstance(node.layer, Pool):
            maps = network.maps[node.name]
    return nbytes
