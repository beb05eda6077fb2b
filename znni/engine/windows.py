"""Blocks of output that several windows make together.

Each block is computed by itself, from all windows that have voxels of it. So memory is bounded, any
block can be computed again, and nothing holds the whole volume's values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from znni.core.shapes import Box, Vec3
from znni.engine.executor import Fragments
from znni.network.geometry import input_box
from znni.network.network import Network
from znni.network.weights import Float32

ZERO, ONE = Vec3(0, 0, 0), Vec3(1, 1, 1)


class WindowedBlock(NamedTuple):
    """The input of a block of output.

    Attributes:
        values: what the windows see (f, z, y, x).
        start: the voxel of the volume where that begins.
        written: the voxels of the volume that the block writes.
        in_patch: the same voxels within the patch.
    """

    values: Float32
    start: Vec3
    written: Box
    in_patch: Box


class BlendedWindows:
    """Computes blocks of output from windows.

    A voxel's windows are added in the same order in every block, so its value does not depend on
    the block.

    Args:
        network: the network, with windows over a volume.
        patch: the extents of a block.
        compute: function that returns a window's output (f', z, y, x) for its input, as the only
            fragment.
        threads: the number of workers that add windows up.
    """

    def __init__(
        self,
        network: Network,
        patch: Vec3,
        compute: Callable[[Fragments], Float32],
        threads: int,
    ) -> None:
        if network.window is None:
            raise ValueError(f"network {network.name} has no windows")
        self._window = network.window
        self._maps = network.out_features
        self._patch = patch
        self._compute = compute
        self._threads = threads
        self._importance = network.window.importance()
        # The network sees zeros around a window, where its first layers pad.
        seen = input_box(network, patch)
        # Strides may leave out the last voxels of a window.
        self._seen = np.zeros((1, network.in_features, *seen.size), np.float32)
        used = Box(ZERO, self._window.size).intersection(seen)
        assert used is not None
        self._used = used.slices
        self._inside = used.shifted(ZERO - seen.start).slices

    def __call__(self, block: WindowedBlock) -> Float32:
        """Return the output (f', Z, Y, X) of a patch; only what the block writes is set."""
        from znni.engine.window_sums import WindowSums

        dense = np.empty((self._maps, *self._patch), np.float32)
        made = dense[:, *block.in_patch.slices]
        sums = WindowSums(self._window, block.written, made, self._importance, self._threads)
        for start in self._window.touching(block.written):
            whole = Box(start, start + self._window.size)
            seen = block.values[:, *whole.shifted(ZERO - block.start).slices]
            for axes in self._window.flips:
                sums.add(self._computed(seen, axes), start, axes)
        sums.mean()
        return dense

    def _computed(self, seen: Float32, axes: tuple[int, ...]) -> Float32:
        """Return the output of a window that is mirrored along axes before."""
        flipped = tuple(axis + 1 for axis in axes)
        self._seen[0][:, *self._inside] = np.flip(seen, flipped)[:, *self._used]
        return self._compute(Fragments(self._seen, (ZERO,), ONE))
