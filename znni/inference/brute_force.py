"""One output voxel of a network, computed in float64 straight from the definition.

Verification compares outputs with these values. The module shares no code with the primitives and
the engine. Planes pass through the layers one by one. Each layer therefore holds only as many
planes as its kernel or window is deep, however large the field of view is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import product, tee
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.network.layers import Conv, Pool
from znni.network.network import INPUT, Network
from znni.network.weights import ConvWeights, Weights
from znni.primitives.reference import activation

Float64: TypeAlias = NDArray[np.float64]

Planes: TypeAlias = Iterator[Float64]  # planes (f, y, x) in the order of z


class AtVoxel(NamedTuple):
    """Output of a network at one voxel.

    Attributes:
        values: one value for each output map.
        largest_sum: the largest magnitude in the last convolution before its activation. Rounding
            errors are relative to it.
    """

    values: Float64
    largest_sum: float


def at_voxel(network: Network, weights: Weights, window: NDArray[np.floating]) -> AtVoxel:
    """Compute the output of the one voxel whose field of view is given.

    Args:
        network: the network to compute.
        weights: parameters of the network.
        window: scaled input (f, z, y, x), exactly as large as the field of view.
    """
    planes = (window[:, z].astype(np.float64) for z in range(window.shape[1]))
    uses = Counter(name for node in network.nodes for name in node.inputs)
    waiting = {INPUT: list[Planes](tee(planes, uses[INPUT]))}
    sums: list[Float64] = []
    for node in network.nodes:
        (taken,) = node.inputs
        given, layer = waiting[taken].pop(), node.layer
        if isinstance(layer, Pool):
            made = _pooled(given, layer.window)
        elif not isinstance(layer, Conv):
            raise ValueError(f"network {network.name} is exact; use block_at")
        else:
            made = _convolved(given, layer, weights[layer.name])
            if layer is network.convolutions[-1]:
                sums = list(made)
                made = iter(sums)
            made = _activated(made, layer)
        copies = uses[node.name] + (node.name == network.output)
        waiting[node.name] = list[Planes](tee(made, copies))
    (plane,) = waiting[network.output].pop()
    return AtVoxel(plane[:, 0, 0], max(float(np.abs(plane).max()) for plane in sums))


def _convolved(planes: Planes, layer: Conv, weights: ConvWeights) -> Planes:
    kernel = layer.kernel
    matrices = weights.weight.astype(np.float64).transpose(2, 3, 4, 0, 1)  # each (out, in)
    held = deque[Float64](maxlen=kernel.z)
    for plane in planes:
        held.append(plane)
        if len(held) < kernel.z:
            continue
        height, width = plane.shape[1] - kernel.y + 1, plane.shape[2] - kernel.x + 1
        sums = np.repeat(weights.bias.astype(np.float64)[:, None], height * width, axis=1)
        for z, y, x in product(*map(range, kernel)):
            seen = held[z][:, y : y + height, x : x + width]
            sums += matrices[z, y, x] @ seen.reshape(layer.in_features, -1)
        yield sums.reshape(-1, height, width)


def _activated(planes: Planes, layer: Conv) -> Planes:
    return (activation(plane[np.newaxis], layer.activation)[0] for plane in planes)


def _pooled(planes: Planes, window: Vec3) -> Planes:
    """Yield the maxima of whole windows."""
    held: list[Float64] = []
    for plane in planes:
        held.append(plane)
        if len(held) == window.z:
            deepest = np.max(held, axis=0)
            height, width = plane.shape[1] // window.y, plane.shape[2] // window.x
            whole = deepest[:, : height * window.y, : width * window.x]
            yield whole.reshape(-1, height, window.y, width, window.x).max(axis=(2, 4))
            held.clear()
