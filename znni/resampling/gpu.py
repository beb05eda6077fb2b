"""Resampling on a GPU, by splines of orders 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.resampling import Resampling
from znni.core.shapes import ZERO, Box, Vec3
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.resampling.box_resampling import part_needed
from znni.resampling.neighbours import neighbours

THREADS = 256
MOST_BLOCKS = 2**16  # with more voxels, each thread takes several


class DeviceResampling:
    """The resampling of boxes on the current GPU.

    It keeps 16 bytes for each target sample of an axis.
    """

    def __init__(self, resampling: Resampling) -> None:
        self._resampling = resampling
        whole = Box(ZERO, resampling.target)
        self._first = resampling.source_box(whole).start  # from which neighbours are counted
        rows = [np.stack(_as_integers(axis), axis=1) for axis in neighbours(resampling, whole)]
        self._along = cupy().asarray(np.concatenate(rows))

    def resample(self, values: Any, at: Vec3, box: Box) -> Any:
        """Return the values (f, z, y, x) of a box of the target, on the current stream.

        Args:
            values: values (f, z, y, x) of the source on the GPU, with rows without gaps. They
                cover at least ``resampling.source_box(box)``.
            at: the source voxel of the first value.
            box: the voxels of the target that are wanted.

        Raises:
            ValueError: the values do not cover the box's source.
        """
        out = cupy().empty((len(values), *box.size), np.float32)
        self._launch(values, at, box, out)
        return out

    def _launch(self, values: Any, at: Vec3, box: Box, out: Any) -> None:
        """Launch the kernel for a box."""
        part_needed(values.shape[1:], at, self._resampling, box)
        z, y, _ = self._resampling.target
        first = box.start + Vec3(0, z, z + y)  # the axes follow each other
        strides = (np.int64(stride // values.itemsize) for stride in values.strides[:3])
        places = map(np.int32, (*first, *(at - self._first), *box.size))
        blocks = min(MOST_BLOCKS, -(-box.size.volume // THREADS))
        numbers = values, *strides, np.int32(len(values)), self._along, *places
        kernel = compiled(source()).get_function("resample")
        kernel((blocks,), (THREADS,), (*numbers, out))


def source() -> str:
    """Return the CUDA source of ``resample``."""
    return source_beside(__file__, "resample.cu")


def _as_integers(columns: tuple[NDArray[Any], ...]) -> list[NDArray[np.int32]]:
    """Return columns of 32 bits each as integers with the same bits."""
    return [np.asarray(column).view(np.int32) for column in columns]
