"""Sums of the outputs of windows over a box of voxels, on a GPU."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.network.window import Window
from znni.primitives.gpu.common.kernels import strides_in_elements
from znni.primitives.gpu.common.voxels import launch, voxels_source

ZERO = Vec3(0, 0, 0)


class _Sums(NamedTuple):
    """Sums over some voxels, on the GPU.

    Attributes:
        values: the sums of weighted outputs (f', z, y, x).
        totals: the sums of weights (z, y, x).
    """

    values: Any
    totals: Any


class WindowMemory:
    """Memory of the current GPU for the sums of one block after the other.

    Args:
        window: the windows, over a volume.
        maps: the maps that the network gives for a window.
        patch: the extents of a block.
    """

    def __init__(self, window: Window, maps: int, patch: Vec3) -> None:
        self.window = window
        self.maps = maps
        beyond = window.tail(patch)
        self._block = cupy().empty(((maps + 1) * (patch + Vec3(0, 0, beyond)).volume,), np.float32)
        self._after = cupy().empty(((maps + 1) * patch.z * patch.y * beyond,), np.float32)
        self.importance = cupy().asarray(window.importance())
        module = compiled(source())
        self.add_window = module.get_function("add_window")
        self.divide = module.get_function("divide")

    def block(self, size: Vec3) -> _Sums:
        """Return cleared sums over a block and what follows it along x."""
        found = self._sums(self._block, size)
        for array in found:
            array.fill(0)
        return found

    def after(self, size: Vec3) -> _Sums:
        """Return the place for sums that are kept for the next block."""
        return self._sums(self._after, size)

    def _sums(self, memory: Any, size: Vec3) -> _Sums:
        values = memory[: self.maps * size.volume].reshape(self.maps, *size)
        totals = memory[self.maps * size.volume :][: size.volume].reshape(size)
        return _Sums(values, totals)


class DeviceWindowSums:
    """Adds up the outputs of windows over a box on the GPU, as ``BoxSums`` says.

    Sums are float32. A voxel's mean depends only on the order in which its windows are added.
    All work is queued on the current stream.

    Args:
        memory: where the sums lie. Only the last box that was begun may use it.
        box: the voxels of the volume over which outputs are added up.
        into: the memory for the mean.
    """

    def __init__(self, memory: WindowMemory, box: Box, into: Any) -> None:
        self._memory = memory
        self._box = box
        self._into = into
        self._sums = memory.block(box.size)

    def take(self, kept: _Sums) -> None:
        """Take the sums that windows before have of the first voxels along x."""
        for mine, other in zip(self._sums, kept, strict=True):
            length = min(other.shape[-1], mine.shape[-1])
            mine[..., :length] = other[..., :length]

    def after(self, x: int) -> _Sums:
        """Return a copy of the sums from a voxel of the box on, along x."""
        size = self._box.size
        kept = self._memory.after(size._replace(x=size.x - x))
        for mine, other in zip(self._sums, kept, strict=True):
            other[...] = mine[..., x:]
        return kept

    def add(self, made: Any, start: Vec3, axes: tuple[int, ...]) -> None:
        """Add what a window has of the box."""
        whole = Box(start, start + Vec3(*made.shape[1:]))
        common = whole.intersection(self._box)
        if common is None:
            return
        memory, box = self._memory, common.shifted(ZERO - self._box.start)
        seen = common.shifted(ZERO - start)
        sums, totals = self._sums.values[:, *box.slices], self._sums.totals[box.slices]
        back = tuple(slice(None, None, -1 if axis in axes else None) for axis in range(3))
        values = made[:, *back][:, *seen.slices]
        weights = memory.importance[seen.slices]
        copies = 0 if axes else len(memory.window.flips)  # once for all copies
        launch(
            memory.add_window,
            Shape5.of(1, memory.maps, common.size),
            *(sums, *strides_in_elements(sums)),
            *(totals, *strides_in_elements(totals)),
            *(values, *strides_in_elements(values), np.int64(values.strides[-1] // 4)),
            *(weights, *strides_in_elements(weights)),
            np.float32(copies),
        )

    def mean(self, x: int) -> Any:
        """Return the sums of the first voxels along x, divided by those of the weights."""
        memory, shape = self._memory, (self._memory.maps, *self._box.size._replace(x=x))
        mean = self._into.ravel()[: prod(shape)].reshape(shape)
        sums, totals = self._sums.values[..., :x], self._sums.totals[..., :x]
        launch(
            memory.divide,
            Shape5(1, *shape),
            *(sums, *strides_in_elements(sums)),
            *(totals, *strides_in_elements(totals)),
            *(mean, *strides_in_elements(mean)),
        )
        return mean


def source() -> str:
    """Return the CUDA source of ``add_window`` and ``divide``."""
    return voxels_source() + source_beside(__file__, "device_window_sums.cu")
