"""Sums of the outputs of windows over a box of voxels, which all workers add up."""

from __future__ import annotations

import numpy as np

from znni.core.shapes import Box
from znni.engine.windows import BoxSums, Sums
from znni.network.weights import Float32
from znni.network.window import Window
from znni.primitives.cpu.common.activation import activate_values
from znni.primitives.cpu.common.clearing import clear
from znni.primitives.cpu.common.weighted_sums import add_weighted, divide_maps
from znni.primitives.cpu.common.workers import workers


class WindowSums(BoxSums):
    """Adds up the outputs of windows on the host. The mean does not depend on the threads.

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
        super().__init__(window, box, Sums(values, np.zeros(box.size, np.float32)), importance)
        self._pool = workers(threads)
        self._activation = window.activation
        clear(values[None], self._pool)

    def _add(self, sums: Sums, values: Float32, weights: Float32, copies: int) -> None:
        add_weighted(sums.values, values, weights, self._pool)
        if copies:

            def task(_worker: int, z: slice) -> None:
                sums.weights[z] += weights[z] * np.float32(copies)

            self._pool.for_each(task, self._pool.shares(len(weights)))

    def after(self, x: int) -> Sums:
        """Return a copy of the sums from a voxel of the box on, along x."""
        return Sums(*(array[..., x:].copy() for array in self._sums))

    def mean(self, x: int) -> Float32:
        """Return the mean at the first voxels along x, in the memory of the sums."""
        values: Float32 = self._sums.values[..., :x]
        weights = self._sums.weights[..., :x]
        weights[weights == 0] = 1
        divide_maps(values, weights, self._pool)
        activate_values(values[None], self._activation, self._pool)
        return values
