"""Sums of the outputs of windows over a box of voxels, which all workers add up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from znni.core.shapes import Box, Vec3
from znni.network.weights import Float32
from znni.network.window import Window
from znni.primitives.cpu.common.clearing import clear
from znni.primitives.cpu.common.weighted_sums import add_weighted, divide_maps
from znni.primitives.cpu.common.workers import workers


class Sums(NamedTuple):
    """Sums over some voxels.

    Attributes:
        values: the sums of weighted outputs (f', z, y, x).
        weights: the sums of weights (z, y, x).
    """

    values: Float32
    weights: Float32


class WindowSums:
    """Adds up the outputs of windows over a box, and gives their weighted mean.

    Sums are float32. A voxel's mean depends only on the order in which its windows are added: not
    on the box, and not on the threads.

    Args:
        window: the windows.
        box: the voxels of the volume over which outputs are added up.
        values: an array (f', z, y, x) of the box's extents for the sums. It is cleared.
        importance: how much each voxel (z, y, x) of a window counts.
        threads: the number of workers.
    """

    def __init__(
        self, window: Window, box: Box, values: Float32, importance: Float32, threads: int
    ) -> None:
        self._box = box
        self._values = values
        self._importance = importance
        self._copies = np.float32(len(window.flips))
        self._pool = workers(threads)
        self._weights = np.zeros(box.size, np.float32)
        clear(values[None], self._pool)

    def take(self, kept: Sums) -> None:
        """Take the sums that windows before have of the first voxels along x."""
        length = min(kept.values.shape[-1], self._values.shape[-1])
        self._values[..., :length] = kept.values[..., :length]
        self._weights[..., :length] = kept.weights[..., :length]

    def after(self, x: int) -> Sums:
        """Return a copy of the sums from a voxel of the box on, along x."""
        return Sums(self._values[..., x:].copy(), self._weights[..., x:].copy())

    def add(self, made: Float32, start: Vec3, axes: tuple[int, ...]) -> None:
        """Add what a window has of the box, as ``BoxSums`` says."""
        whole = Box(start, start + Vec3(*made.shape[1:]))
        common = whole.intersection(self._box)
        if common is None:
            return
        at = common.shifted(Vec3(0, 0, 0) - self._box.start).slices
        kept = common.shifted(Vec3(0, 0, 0) - start).slices
        counts = self._importance[kept]
        back = np.flip(made, tuple(axis + 1 for axis in axes))
        add_weighted(self._values[:, *at], back[:, *kept], counts, self._pool)
        if not axes:  # once for all copies, which count the same
            total = self._weights[at]

            def task(_worker: int, z: slice) -> None:
                total[z] += counts[z] * self._copies

            self._pool.for_each(task, self._pool.shares(len(total)))

    def mean(self, x: int) -> Float32:
        """Return the sums of the first voxels along x, divided by those of the weights, in place.

        A voxel that no window has becomes 0.
        """
        values, weights = self._values[..., :x], self._weights[..., :x]
        weights[weights == 0] = 1
        divide_maps(values, weights, self._pool)
        return values
