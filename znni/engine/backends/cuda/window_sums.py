"""Sums of the outputs of windows over a box of voxels, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from znni.core.shapes import Box, Shape5, Vec3
from znni.engine.windows import BoxSums, Sums
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.network.window import Window
from znni.primitives.gpu.common.activation import activate_over_maps
from znni.primitives.gpu.common.kernels import common_code, strides_in_elements
from znni.primitives.gpu.common.voxels import launch, strided_along_x


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
        patch = window.blended_extents(patch)
        self._block = cupy().empty(((maps + 1) * (patch + Vec3(0, 0, beyond)).volume,), np.float32)
        self._after = cupy().empty(((maps + 1) * patch.z * patch.y * beyond,), np.float32)
        self.importance = cupy().asarray(window.importance())
        module = compiled(source())
        self.add_window = module.get_function("add_window")
        self.divide = module.get_function("divide")
        self.sigmoid = module.get_function("sigmoid")

    def block(self, size: Vec3) -> Sums:
        """Return cleared sums over a block and what follows it along x."""
        found = self._sums(self._block, size)
        for array in found:
            array.fill(0)
        return found

    def after(self, size: Vec3) -> Sums:
        """Return the place for sums that are kept for the next block."""
        return self._sums(self._after, size)

    def _sums(self, memory: Any, size: Vec3) -> Sums:
        values = memory[: self.maps * size.volume].reshape(self.maps, *size)
        totals = memory[self.maps * size.volume :][: size.volume].reshape(size)
        return Sums(values, totals)


class DeviceWindowSums(BoxSums):
    """Adds up the outputs of windows on the GPU. All work is queued on the current stream.

    Args:
        memory: where the sums lie. Only the last box that was begun may use it.
        box: the voxels of the volume over which outputs are added up.
        into: the memory for the mean.
    """

    def __init__(self, memory: WindowMemory, box: Box, into: Any) -> None:
        super().__init__(memory.window, box, memory.block(box.size), memory.importance)
        self._memory = memory
        self._into = into

    def _add(self, sums: Sums, values: Any, weights: Any, copies: int) -> None:
        launch(
            self._memory.add_window,
            Shape5(1, *values.shape),
            *_placed(*sums),
            *strided_along_x(values),
            *_placed(weights),
            np.float32(copies),
        )

    def after(self, x: int) -> Sums:
        """Return a copy of the sums from a voxel of the box on, along x."""
        size = self._box.size
        kept = self._memory.after(size._replace(x=size.x - x))
        for mine, other in zip(self._sums, kept, strict=True):
            other[...] = mine[..., x:]
        return kept

    def mean(self, x: int) -> Any:
        """Return the mean at the first voxels along x."""
        shape = self._memory.maps, *self._box.size._replace(x=x)
        mean = self._into.ravel()[: prod(shape)].reshape(shape)
        sums = (array[..., :x] for array in self._sums)
        launch(self._memory.divide, Shape5(1, *shape), *_placed(*sums, mean))
        activation = self._memory.window.activation
        activate_over_maps(mean[None], activation)
        if activation == "sigmoid":
            launch(self._memory.sigmoid, Shape5(1, *shape), *_placed(mean))
        return mean


def _placed(*arrays: Any) -> Iterator[Any]:
    """Yield each array, and the strides of its axes but the last."""
    for array in arrays:
        yield array
        yield from strides_in_elements(array)


def source() -> str:
    """Return the CUDA source of ``add_window``, ``divide`` and ``sigmoid``."""
    return common_code("voxels.cuh") + source_beside(__file__, "window_sums.cu")
