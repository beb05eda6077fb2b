"""A network that depends on whole windows, and the mean of its windows in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from znni.core.option_types import Border, Pad
from znni.core.shapes import Box, Vec3
from znni.engine.reading import read_input
from znni.engine.tiles import make_job
from znni.network.geometry import with_window
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import Float32, random_weights
from znni.network.window import Window
from znni.primitives.reference import Float64
from znni.primitives.tiled_reference import output_at_once
from znni.volumes.array import ArrayVolume

# A network of classes, whose last layer is a head on fewer maps.
CLASSES = """\
name: classes
layers:
  - conv: {features: 4, kernel: 3, padding: same}
  - instance_norm: {activation: leaky_relu}
  - name: head
    conv: {features: 9, kernel: 1, activation: identity}
"""

NET = """\
name: norms
in_features: 2
input: {scale: 0.5, offset: -1}
layers:
  - conv: {features: 4, kernel: 3, padding: same}
  - name: skip
    instance_norm: {activation: leaky_relu}
  - conv: {features: 6, kernel: 3, stride: 2, padding: 1}
  - group_norm: {groups: 3, activation: relu}
  - conv_transpose: {features: 4, kernel: 2, stride: 2}
  - name: squeezed
    global_pool: {}
  - name: peak
    from: conv_transpose1
    global_pool: {kind: max}
  - maximum: {}
    from: [squeezed, peak]
  - name: excited
    conv: {features: 4, kernel: 1, activation: sigmoid}
  - multiply: {}
    from: [conv_transpose1, excited]
  - concat: {}
    from: [multiply1, skip]
  - conv: {features: 3, kernel: [1, 3, 3], padding: same}
  - add: {}
    from: [conv4, conv4]
"""


def network(window: Window) -> Network:
    return with_window(network_from_text(NET, "norms.yaml"), window)


def volume(size: Vec3, seed: int = 0, maps: int = 2) -> Float32:
    return np.random.default_rng(seed).standard_normal((maps, *size), np.float32)


def blended(net: Network, x: Float32, border: Border = "valid", pad: Pad | None = None) -> Float64:
    """Return the mean of all windows at each voxel, in float64."""
    opened = ArrayVolume(x)
    job = make_job(net, opened.size, border, pad, None)
    assert net.window is not None
    window = replace(net.window, volume=opened.size)
    weights, counts = random_weights(net, 7), window.importance().astype(np.float64)
    around = window.seen()
    sums = np.zeros((net.out_features, *around.size))
    total = np.zeros(around.size)
    for start in window.touching(around):
        box = Box(start, start + window.size)
        seen = read_input(opened, job, box, net.scaling)
        at = box.shifted(Vec3(0, 0, 0) - around.start).slices
        for axes in window.flips:
            flipped = tuple(axis + 1 for axis in axes)
            made = output_at_once(net, weights, np.flip(seen, flipped))
            sums[:, *at] += np.flip(made, flipped) * counts
            total[at] += counts
    inside = Box(Vec3(0, 0, 0), opened.size).shifted(Vec3(0, 0, 0) - around.start)
    return (sums / total)[:, *inside.slices]
