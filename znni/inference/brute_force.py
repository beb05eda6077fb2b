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

from znni.core.shapes import Box, Vec3
from znni.core.volume import Action
from znni.engine.stage_chain import nothing_to_do
from znni.network.geometry import reads_of, whole_sizes
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
    """Return the multiplications to compute voxels one after another.

    Args:
        network: a chain of layers, or a network for a volume: tiled, or with windows over it.
        places: the voxels of the volume in their order, which counts for windows. Without windows,
            all voxels take as long as one in the middle.
    """
    if network.window is None:
        return len(places) * _multiplications_at_voxel(network)
    computed = windows_at(network.window, places)
    return computed * _multiplications_of_window(network, network.window)


def windows_at(window: Window, places: Sequence[Vec3]) -> int:
    """Return the windows to compute for voxels one after another, without mirrored copies."""
    computed, kept = 0, list[Vec3]()
    for at in places:
        for voxel in _blended_at(window, at):
            starts = list(window.touching(Box(voxel, voxel + 1)))
            computed += sum(start not in kept for start in starts)
            kept = starts or kept
    return computed


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
        inside = Box(Vec3(0, 0, 0), sizes[first]).shifted(Vec3(0, 0, 0) - taken.start)
        inside = inside.intersection(Box(Vec3(0, 0, 0), taken.size)) or inside
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
            boxes[node.name] = Box(Vec3(0, 0, 0), sizes[node.name])
        reads[node.name] = reads_of(node, boxes[node.name], sizes)
        for name, read in zip(node.inputs, reads[node.name], strict=True):
            known = _within(read, sizes[name])
            boxes[name] = boxes[name].hull(known) if name in boxes else known
    return boxes, reads


class WindowsAt:
    """Computes voxels of a network that is computed in windows.

    The outputs of the windows that have the last voxel are kept.

    Args:
        network: the network, with windows over a volume.
        weights: its parameters.
        seen: function that returns what windows see in a box of the volume (f, z, y, x).
        computed: called after each window, and after each mirrored copy.
    """

    def __init__(
        self,
        network: Network,
        weights: Weights,
        seen: Callable[[Box], NDArray[np.floating]],
        computed: Action = nothing_to_do,
    ) -> None:
        if network.window is None:
            raise ValueError(f"network {network.name} has no windows")
        self._network, self._weights, self._seen = network, weights, seen
        self._computed_one = computed
        self._window = network.window
        self._importance = network.window.importance().astype(np.float64)
        self._kept: dict[Vec3, list[Float64]] = {}

    def __call__(self, at: Vec3) -> AtVoxel:
        """Return the output at a voxel: the mean of all windows, or of such means."""
        if self._window.resampled is None:
            return self._mean(at)
        total, largest = np.zeros(self._network.out_features), 0.0
        for voxel, share in self._window.resampled.shares(at):
            mean = self._mean(voxel)
            total += share * mean.values
            largest = max(largest, mean.largest_sum)
        return AtVoxel(total, largest)

    def _mean(self, at: Vec3) -> AtVoxel:
        """Return the mean of all windows at a voxel of the volume."""
        starts = list(self._window.touching(Box(at, at + 1)))
        if not starts:  # the input is cropped to others
            return AtVoxel(np.zeros(self._network.out_features), 0.0)
        self._kept = {start: output for start, output in self._kept.items() if start in starts}
        total = np.zeros(self._network.out_features)
        counted = largest = 0.0
        for start in starts:
            for output in self._kept.setdefault(start, []) or self._computed(start):
                counts = self._importance[at - start]
                total += counts * output[:, *(at - start)]
                counted += counts
                largest = max(largest, float(np.abs(output).max()))
        mean = (total / counted).reshape(1, -1, 1, 1, 1)
        return AtVoxel(activation(mean, self._window.activation).ravel(), largest)

    def _computed(self, start: Vec3) -> list[Float64]:
        """Return the outputs of a window and of its mirrored copies."""
        seen = self._seen(Box(start, start + self._window.size))
        for axes in self._window.flips:
            flipped = tuple(axis + 1 for axis in axes)
            output = output_at_once(self._network, self._weights, np.flip(seen, flipped))
            self._kept[start].append(np.flip(output, flipped))
            self._computed_one()
        return self._kept[start]


def _within(box: Box, size: Vec3) -> Box:
    """Return the part of a box within a whole value; it is empty at an edge if there is none."""
    start = box.start.maximum(Vec3(0, 0, 0)).minimum(size)
    return Box(start, box.stop.minimum(size).maximum(start))


def _window(values: Float64, known: Box, wanted: Box) -> Float64:
    """Return the values (f, z, y, x) of another box; those that are not known are zero."""
    found = np.zeros((len(values), *wanted.size))
    if common := known.intersection(wanted):
        origin = Vec3(0, 0, 0)
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
