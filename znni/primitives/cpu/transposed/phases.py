"""The phases of a transposed convolution: its output is many small convolutions, interleaved.

Output samples whose positions leave the same remainders by the stride see the same taps. Together
they are the output of a convolution by these taps, one for each of the ``stride.volume`` phases.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3, offsets
from znni.network.layers import ConvTranspose

# A tap of a phase along one axis: its number in the kernel, and the sample of the input that it
# takes, counted from the first one that the phase's output depends on.
AxisTap = tuple[int, int]


class PhaseTap(NamedTuple):
    """A tap of a phase.

    Attributes:
        tap: its place in the kernel.
        at: the sample of the input that it takes.
    """

    tap: Vec3
    at: Vec3


def axis_taps(kernel: int, stride: int, padding: int) -> list[list[AxisTap]]:
    """Return the taps of each phase along one axis."""
    before = (kernel - 1 - padding) // stride
    return [
        [
            (tap, before - (tap - phase - padding) // stride)
            for tap in range(kernel)
            if (tap - phase - padding) % stride == 0
        ]
        for phase in range(stride)
    ]


def phase_taps(layer: ConvTranspose) -> list[list[PhaseTap]]:
    """Return the taps of all phases, in the order of the phases' offsets in the output."""
    axes = zip(layer.kernel, layer.stride, layer.padding, strict=True)
    z, y, x = (axis_taps(*axis) for axis in axes)
    return [
        [
            PhaseTap(Vec3(tap_z, tap_y, tap_x), Vec3(at_z, at_y, at_x))
            for tap_z, at_z in z[phase.z]
            for tap_y, at_y in y[phase.y]
            for tap_x, at_x in x[phase.x]
        ]
        for phase in offsets(layer.stride)
    ]


def tap_offsets(
    phases: list[list[PhaseTap]], features: int, planes: int, height: int, pitch: int
) -> NDArray[np.int64]:
    """Return the offset of each tap of each map in rows that lie end to end, phase by phase."""
    found = []
    for phase in phases:
        place = [(tap.at.z * height + tap.at.y) * pitch + tap.at.x for tap in phase]
        maps = np.arange(features)[:, np.newaxis] * (planes * height * pitch)
        found.append((maps + np.array(place, np.int64)).ravel())
    return np.concatenate(found)


def tile_weights(
    weight: NDArray[np.float32], phases: list[list[PhaseTap]], tiles: int, maps: int
) -> NDArray[np.float32]:
    """Return weights (in, out, z, y, x) by tile, phase, input map, tap and map of the tile.

    Maps that fill the last tile are zero.
    """
    features, out_features = weight.shape[:2]
    padded = np.zeros((features, tiles * maps, *weight.shape[2:]), np.float32)
    padded[:, :out_features] = weight
    parts = [
        np.stack([padded[:, tile * maps : (tile + 1) * maps, *tap.tap] for tap in phase], axis=1)
        for tile in range(tiles)
        for phase in phases
        if phase
    ]
    return np.concatenate([part.ravel() for part in parts])
