"""One output voxel of a network, computed in float64 straight from the definition.

Verification compares outputs with these values. The module shares no code with the primitives and
the engine. Planes pass through the layers one by one. Each layer therefore holds only as many
planes as its kernel or window is deep, however large the field of view is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product, tee
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import BlendedActivation
from znni.core.shapes import ZERO, Box, Vec3
from znni.engine.run_state import Progress
from znni.network.frames import reads_of, whole_sizes
from znni.network.layers import Conv, ConvTranspose, Layer, Model, Normalize, Pool, Weighted
from znni.network.network import Network
from znni.network.node import INPUT
from znni.network.weights import ConvWeights, Weights
from znni.network.window import Window
from znni.primitives.reference import activation
from znni.primitives.tiled_reference import local, output_at_once

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
            values = _pooled(given, layer)
        elif not isinstance(layer, Conv):
            raise ValueError(f"network {network.name} is tiled; use tiled_at")
        else:
            values = _convolved(given, layer, weights[layer.name])
            if layer is network.convolutions[-1]:
                sums = list(values)
                values = iter(sums)
            values = _activated(values, layer)
        copies = uses[node.name] + (node.name == network.output)
        waiting[node.name] = list[Planes](tee(values, copies))
    (plane,) = waiting[network.output].pop()
    return AtVoxel(plane[:, 0, 0], max(float(np.abs(plane).max()) for plane in sums))


def multiplications_at(network: Network, places: Sequence[Vec3]) -> int:
    """Return the multiplications to compute voxels.

    Args:
        network: a chain of layers, or a network for a volume: tiled, or with windows over it.
        places: the voxels of the volume. Voxels in the same windows share these. Without windows,
            all voxels take as long as one in the middle.
    """
    if network.window is None:
        return len(places) * _multiplications_at_voxel(network)
    computed = len(windows_at(network.window, places))
    return computed * _multiplications_of_window(network, network.window)


def windows_at(window: Window, places: Sequence[Vec3]) -> dict[Vec3, list[Vec3]]:
    """Return the windows that voxels of the output need, by where they begin.

    Each has the voxels of the volume that are needed of it.
    """
    needed: dict[Vec3, list[Vec3]] = {}
    for voxel in dict.fromkeys(voxel for at in places for voxel in _blended_at(window, at)):
        for start in window.touching(Box(voxel, voxel + 1)):
            needed.setdefault(start, []).append(voxel)
    return needed


def _blended_at(window: Window, at: Vec3) -> list[Vec3]:
    """Return the voxels of the volume whose means of windows make a voxel of the output."""
    if window.resampled is None:
        return [at]
    return [voxel for voxel, _ in window.resampled.shares(at)]


def _multiplications_at_voxel(network: Network) -> int:
    """Return the multiplications for a voxel in the middle of a network without windows."""
    if network.whole is not None:
        return _multiplications_in_boxes(network, network.whole)
    size, count = network.field_of_view, 0
    for node in network.nodes:
        if isinstance(node.layer, Pool):
            size = size // node.layer.window
        elif isinstance(node.layer, Conv):
            size = size - (node.layer.kernel - 1)
            count += size.volume * prod(node.layer.weight_shape)
    return count


def _multiplications_of_window(network: Network, window: Window) -> int:
    """Return the multiplications for a window and its mirrored copies."""
    sizes = whole_sizes(network, window.size)
    return len(window.flips) * sum(
        _multiplications(node.layer, sizes[node.name], sizes[node.inputs[0]])
        for node in network.nodes
    )


def _multiplications_in_boxes(network: Network, whole: Vec3) -> int:
    """Return the multiplications for the voxel in the middle of a tiled network's output."""
    sizes = whole_sizes(network, whole)
    boxes, reads = _needed(network, sizes, sizes[network.output] // 2)
    return sum(
        _multiplications(node.layer, boxes[node.name].size, reads[node.name][0].size)
        for node in network.nodes
    )


def _multiplications(layer: Layer, size_out: Vec3, size_in: Vec3) -> int:
    """Return the multiplications of a layer, given the extents of its output and its input."""
    if isinstance(layer, Conv):
        return size_out.volume * prod(layer.weight_shape)
    if isinstance(layer, ConvTranspose):
        return size_in.volume * prod(layer.weight_shape)
    return 0


def tiled_at(
    network: Network, weights: Weights, seen: Callable[[Box], NDArray[np.floating]], at: Vec3
) -> AtVoxel:
    """Compute one voxel of a tiled network's output, from the samples that it depends on.

    Args:
        network: a tiled network for a volume.
        weights: parameters of the network.
        seen: function that returns a box of the network's input (f, z, y, x), within its extents.
        at: the voxel of the whole output.
    """
    if network.whole is None:
        raise ValueError(f"network {network.name} is for no volume")
    sizes = whole_sizes(network, network.whole)
    boxes, reads = _needed(network, sizes, at)
    values = {INPUT: seen(boxes[INPUT]).astype(np.float64)}
    largest = 0.0
    for node in network.nodes:
        given = [
            _window(values[name], boxes[name], box)[np.newaxis]
            for name, box in zip(node.inputs, reads[node.name], strict=True)
        ]
        (taken, *_), (first, *_) = reads[node.name], node.inputs
        inside = Box(ZERO, sizes[first]).shifted(ZERO - taken.start)
        inside = inside.intersection(Box(ZERO, taken.size)) or inside
        value = local(node.layer, weights, given, inside)[0]
        kept = _within(boxes[node.name], sizes[node.name])
        values[node.name] = _window(value, boxes[node.name], kept)
        boxes[node.name] = kept
        if isinstance(node.layer, Weighted):
            largest = float(np.abs(value).max())
    found = _window(values[network.output], boxes[network.output], Box(at, at + 1))
    return AtVoxel(found[:, 0, 0, 0], largest)


def _needed(
    network: Network, sizes: Mapping[str, Vec3], at: Vec3
) -> tuple[dict[str, Box], dict[str, tuple[Box, ...]]]:
    """Return the box of each value that a voxel needs, and the boxes of inputs that nodes read.

    Args:
        network: a tiled network for a volume.
        sizes: extents of its values, by name.
        at: the voxel of the whole output.
    """
    boxes = {network.output: Box(at, at + 1)}
    reads: dict[str, tuple[Box, ...]] = {}
    for node in reversed(network.nodes):
        boxes[node.name] = node.layer.rounded(boxes[node.name])
        if isinstance(node.layer, Normalize | Model):
            boxes[node.name] = Box(ZERO, sizes[node.name])
        reads[node.name] = reads_of(node, boxes[node.name], sizes)
        for name, read in zip(node.inputs, reads[node.name], strict=True):
            known = _within(read, sizes[name])
            boxes[name] = boxes[name].hull(known) if name in boxes else known
    return boxes, reads


def windowed_at(
    network: Network,
    weights: Weights,
    seen: Callable[[Box], NDArray[np.floating]],
    places: Sequence[Vec3],
    progress: Progress,
) -> list[AtVoxel]:
    """Compute voxels of a network that is computed in windows. Each window is computed once.

    Args:
        network: the network, with windows over a volume.
        weights: its parameters.
        seen: function that returns what windows see in a box of the volume (f, z, y, x).
        places: the voxels of the output.
        progress: called with the windows that are computed, and all of them, each mirrored copy
            counted.
    """
    window = network.window
    if window is None:
        raise ValueError(f"network {network.name} has no windows")
    importance, needed = window.importance().astype(np.float64), windows_at(window, places)
    sums = {
        voxel: _Sums(network.out_features) for at in places for voxel in _blended_at(window, at)
    }
    done, total = 0, len(needed) * len(window.flips)
    progress(done, total)
    for start, voxels in needed.items():
        values = seen(Box(start, start + window.size))
        for axes in window.flips:
            flipped = tuple(axis + 1 for axis in axes)
            output = output_at_once(network, weights, np.flip(values, flipped))
            output, largest = np.flip(output, flipped), float(np.abs(output).max())
            for voxel in voxels:
                at = voxel - start
                sums[voxel].add(output[:, *at], importance[at], largest)
            done += 1
            progress(done, total)
    means = {voxel: each.mean(window.activation) for voxel, each in sums.items()}
    return [_resampled(window, at, means) for at in places]


class _Sums:
    """The sums of windows at a voxel of the volume, each times its weight there."""

    def __init__(self, features: int) -> None:
        self._total = np.zeros(features)
        self._counted = self._largest = 0.0

    def add(self, values: Float64, counts: float, largest: float) -> None:
        """Add the values of a window, whose largest magnitude is given."""
        self._total += counts * values
        self._counted += counts
        self._largest = max(self._largest, largest)

    def mean(self, blended: BlendedActivation) -> AtVoxel:
        """Return the mean; 0 if there is no window, because the input is cropped to others."""
        if not self._counted:
            return AtVoxel(self._total, 0.0)
        mean = (self._total / self._counted).reshape(1, -1, 1, 1, 1)
        return AtVoxel(activation(mean, blended).ravel(), self._largest)


def _resampled(window: Window, at: Vec3, means: Mapping[Vec3, AtVoxel]) -> AtVoxel:
    """Return the output at a voxel: the mean of all windows, or a sum of shares of such means."""
    if window.resampled is None:
        return means[at]
    parts = [(means[voxel], share) for voxel, share in window.resampled.shares(at)]
    total = np.sum([share * mean.values for mean, share in parts], axis=0)
    return AtVoxel(total, max(mean.largest_sum for mean, _ in parts))


def _within(box: Box, size: Vec3) -> Box:
    """Return the part of a box within a whole value; it is empty at an edge if there is none."""
    start = box.start.maximum(ZERO).minimum(size)
    return Box(start, box.stop.minimum(size).maximum(start))


def _window(values: Float64, known: Box, wanted: Box) -> Float64:
    """Return the values (f, z, y, x) of another box; those that are not known are zero."""
    found = np.zeros((len(values), *wanted.size))
    if common := known.intersection(wanted):
        origin = ZERO
        source = common.shifted(origin - known.start)
        target = common.shifted(origin - wanted.start)
        found[:, *target.slices] = values[:, *source.slices]
    return found


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


def _pooled(planes: Planes, layer: Pool) -> Planes:
    """Yield the maxima or averages of whole windows."""
    held: list[Float64] = []
    window = layer.window
    reduced: Any = np.max if layer.reduce == "max" else np.mean
    for plane in planes:
        held.append(plane)
        if len(held) == window.z:
            deepest = reduced(held, axis=0)
            height, width = plane.shape[1] // window.y, plane.shape[2] // window.x
            whole = deepest[:, : height * window.y, : width * window.x]
            parts = whole.reshape(-1, height, window.y, width, window.x)
            yield reduced(parts, axis=(2, 4))
            held.clear()
