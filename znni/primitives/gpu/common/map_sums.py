"""Sums or maxima of the voxels of each map, on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda_kernels import source_beside
from znni.machine.device_arena import device_workspace
from znni.primitives.gpu.common.kernels import common_code, compiler_options
from znni.primitives.gpu.common.voxels import MOST, THREADS, strided

# Blocks of a launch that keep the memory of any GPU busy. More would leave less to each.
ENOUGH_BLOCKS = 4096

# Values that a thread reads at once, if rows allow it, and their bytes.
FOUR, FOUR_BYTES = 4, 16

# Bytes of a block's result: two numbers in float64.
PARTIAL_BYTES = 16


def source() -> str:
    """Return the CUDA source of ``reduce_maps``, and of functions that combine its results.

    It is compiled with ``options``.
    """
    return common_code("voxels.cuh", "larger.cuh") + source_beside(__file__, "map_sums.cu")


def options(*, maps_together: int = 0, is_max: bool = False, together: int = 1) -> tuple[str, ...]:
    """Return options of the compiler.

    Args:
        maps_together: the maps of a group. Its first sample is subtracted from all its values, so
            that their squares do not lose digits. 0: values are added up as they are.
        is_max: whether maxima are found instead of sums.
        together: voxels of a row that a thread reads at once, 1 or 4.
    """
    values = {"MAPS_TOGETHER": maps_together, "IS_MAX": int(is_max), "TOGETHER": together}
    return compiler_options(values)


def in_fours(array: Any) -> bool:
    """Return whether rows of an array begin at 16 bytes and consist of four values each."""
    places = (array.data.ptr, *array.strides[:-1])
    return array.shape[-1] % FOUR == 0 and all(place % FOUR_BYTES == 0 for place in places)


@dataclass(frozen=True)
class MapSums:
    """The division of the maps of an input among blocks, which reduce them.

    Attributes:
        shape: the shape of the input.
        together: voxels of a row that a thread reads at once, 1 or 4.
    """

    shape: Shape5
    together: int = 1

    @property
    def columns(self) -> int:
        """Blocks for a plane of a map. A thread has one cell of all planes of its share."""
        return max(1, -(-self.shape.y * (self.shape.x // self.together) // THREADS))

    @property
    def shares(self) -> int:
        """Parts of a map's planes."""
        enough = ENOUGH_BLOCKS // (self.shape.n * self.shape.f * self.columns)
        return max(1, min(self.shape.z, enough))

    @property
    def parts(self) -> int:
        """Blocks for a map."""
        return self.columns * self.shares

    @property
    def blocks(self) -> int:
        """Blocks for all maps."""
        return self.shape.n * self.shape.f * self.parts

    @property
    def countable(self) -> bool:
        """True if a launch can count the blocks, and a block can count the cells of a plane."""
        return self.blocks <= MOST and self.shape.y * self.shape.x <= MOST

    @property
    def workspace_bytes(self) -> int:
        """Bytes of what all blocks find."""
        return PARTIAL_BYTES * self.blocks

    def __call__(self, reduce_maps: Any, x: Any) -> Any:
        """Return what all blocks find, map after map.

        Args:
            reduce_maps: the kernel.
            x: the input (n, f, z, y, x).
        """
        found = device_workspace((self.workspace_bytes,), np.uint8)
        _, *sizes, length = self.shape
        counts = self.columns, self.shares, *sizes, length // self.together
        numbers = map(np.int32, counts)
        reduce_maps((self.blocks,), (THREADS,), (*strided(x), found, *numbers))
        return found
