"""From the mean of windows to what is stored: resampling, the last layer, labels.

``windows.py`` makes the mean. The last layer of a network may be linear at each voxel. Then it
gives the same before and after windows are blended, except for rounding. So it is applied here,
once, if that takes fewer sums. If labels are stored, the maps of the last layer are never stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from znni.core.resampling import Resampling
from znni.core.shapes import ZERO, Box, Vec3
from znni.engine.block import Block
from znni.engine.labels import Labels
from znni.network.weights import ConvWeights, Float32
from znni.network.window import Window

# Values of maps that become labels at a time, unless a row has more. So many stay in the caches.
LABEL_PIECE = 2**20


class BlendedBlock(Protocol):
    """The mean of all windows over a block, on the host or a GPU."""

    @property
    def wanted(self) -> NDArray[np.bool_] | None:
        """The voxels (z, y, x) that need output; the others are stored as 0. None: all."""

    def maps(self) -> Float32:
        """Return the output's maps (f', z, y, x)."""

    def labels(self, labels: Labels) -> NDArray[Any]:
        """Return the labels (1 or f', z, y, x) of the output."""


class Onto(NamedTuple):
    """The place to which blended values are resampled.

    Attributes:
        resampling: the resampling from the volume to the output.
        start: the first voxel of the volume that is blended.
        written: the voxels of the output.
    """

    resampling: Resampling
    start: Vec3
    written: Box


def onto(window: Window, block: Block) -> Onto | None:
    """Return where the blended values of a block are resampled to; None if they are not."""
    if window.resampled is None:
        return None
    return Onto(window.resampled, window.blended(block.written).start, block.written)


@dataclass(frozen=True)
class Blended:
    """The mean of all windows over a block, on the host.

    Attributes:
        values: the means (f, z, y, x).
        head: the weights of the last layer, if it is still to be applied.
        wanted: the voxels (z, y, x) that need output; the others are stored as 0. None: all.
        threads: the number of workers.
        onto: where the values are resampled to; None: the output has their voxels.
    """

    values: Float32
    head: ConvWeights | None
    wanted: NDArray[np.bool_] | None
    threads: int
    onto: Onto | None = None

    def maps(self) -> Float32:
        """Return the output's maps (f', z, y, x)."""
        values = self._output(Box(ZERO, self._size))
        return values if self.head is None else self._headed(values)

    def labels(self, labels: Labels) -> NDArray[Any]:
        """Return the labels (1 or f', z, y, x) of the output, piece by piece."""
        if self.onto and self.head is None and labels.of_maps and not labels.regions:
            return self._resampled_labels(self.onto, labels)
        maps = len(self.values) if self.head is None else len(self.head.bias)
        result = np.empty((labels.features(maps), *self._size), labels.dtype)
        rows = max(1, LABEL_PIECE // (maps * self._size.x))
        for piece in Box(ZERO, self._size).cut(Vec3(1, rows, self._size.x)):
            result[:, *piece.slices] = self._labels_of(self._output(piece), labels)
        return result

    def _resampled_labels(self, onto: Onto, labels: Labels) -> NDArray[Any]:
        """Return the labels (1, z, y, x) of the largest maps, which are never stored."""
        from znni.resampling.labels import label_largest

        start, resampling, written = onto.start, onto.resampling, onto.written
        known = np.array(labels.of_maps, labels.dtype)
        stored = label_largest(self.values, start, resampling, written, known, threads=self.threads)
        return stored[np.newaxis]

    @property
    def _size(self) -> Vec3:
        """The extents of the output."""
        return self.onto.written.size if self.onto else Vec3(*self.values.shape[1:])

    def _output(self, piece: Box) -> Float32:
        """Return the values (f, z, y, x) of a piece of the output, resampled if they must be."""
        if self.onto is None:
            return self.values[:, *piece.slices]
        from znni.resampling.box_resampling import resample

        start, resampling = self.onto.start, self.onto.resampling
        wanted = piece.shifted(self.onto.written.start)
        return resample(self.values, start, resampling, wanted, threads=self.threads)

    def _labels_of(self, values: Float32, labels: Labels) -> NDArray[Any]:
        if self.head is None or not labels.of_maps or labels.regions:
            return labels.apply(values if self.head is None else self._headed(values))
        from znni.primitives.cpu.common.linear_maps import largest_maps
        from znni.primitives.cpu.common.workers import workers

        number = np.empty(values.shape[1:], np.int32)
        largest_maps(values, *_factors(self.head), number, workers(self.threads))
        return np.array(labels.of_maps, labels.dtype)[number][np.newaxis]

    def _headed(self, values: Float32) -> Float32:
        """Return what the last layer makes of values."""
        from znni.primitives.cpu.common.linear_maps import linear_maps
        from znni.primitives.cpu.common.workers import workers

        weight, bias = _factors(self.head)
        mixed = np.empty((len(bias), *values.shape[1:]), np.float32)
        linear_maps(values, weight, bias, mixed, workers(self.threads))
        return mixed


def clear_unwanted(stored: NDArray[Any], wanted: NDArray[np.bool_] | None) -> None:
    """Set stored values (f', z, y, x) of voxels that need no output to 0, in place."""
    if wanted is not None:
        bits = stored.view(f"u{stored.itemsize}")  # infinity times 0 would be NaN
        np.multiply(bits, wanted, out=bits)


def _factors(head: ConvWeights | None) -> tuple[Float32, Float32]:
    assert head is not None
    return np.ascontiguousarray(head.weight[:, :, 0, 0, 0]), head.bias
