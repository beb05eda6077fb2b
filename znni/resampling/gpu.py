"""Resampling on a GPU: splines of orders 0 and 1, and the labels of the largest maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.resampling.labels import neighbours
from znni.resampling.spline import check_covered

THREADS = 256
MOST_BLOCKS = 2**16  # with more voxels, each thread takes several

TYPES = {"uint8": "unsigned char", "uint16": "unsigned short"}


class DeviceResampling:
    """Resamples boxes on the current GPU. It keeps 16 bytes for each target sample of an axis.

    Args:
        resampling: the change of voxels.

    Raises:
        ValueError: an order is higher than 1.
    """

    def __init__(self, resampling: Resampling) -> None:
        self._resampling = resampling
        whole, start = Box(Vec3(0, 0, 0), resampling.target), Vec3(0, 0, 0)
        along = [
            np.stack(_as_integers(axis), axis=1) for axis in neighbours(resampling, whole, start)
        ]
        self._along = cupy().asarray(np.concatenate(along))

    def resample(self, values: Any, at: Vec3, box: Box) -> Any:
        """Return the values (f, z, y, x) of a box of the target, on the current stream.

        Args:
            values: values (f, z, y, x) of the source on the GPU, with rows without gaps: those of
                ``resampling.source_box(box)`` at least.
            at: the source voxel of the first of them.
            box: the voxels of the target that are wanted.

        Raises:
            ValueError: the values do not cover the box's source.
        """
        out = cupy().empty((len(values), *box.size), np.float32)
        self._launch("resample", "uint8", values, at, box, out)
        return out

    def label_largest(self, values: Any, at: Vec3, box: Box, labels: Any) -> Any:
        """Return the labels (z, y, x) of the largest maps of a box, on the current stream.

        If several maps are equally large, the first one counts.

        Args:
            values: as for ``resample``.
            at: the source voxel of the first of them.
            box: the voxels of the target that are wanted.
            labels: the label of each map on the GPU, of type uint8 or uint16.

        Raises:
            ValueError: the values do not cover the box's source.
        """
        out = cupy().empty(box.size, labels.dtype)
        self._launch("label_largest", labels.dtype.name, values, at, box, labels, out)
        return out

    def _launch(self, name: str, dtype: str, values: Any, at: Vec3, box: Box, *arrays: Any) -> None:
        """Launch a kernel for a box."""
        check_covered(values.shape[1:], at, self._resampling, box)
        z, y, _ = self._resampling.target
        first = box.start + Vec3(0, z, z + y)  # the axes follow each other
        strides = (np.int64(stride // values.itemsize) for stride in values.strides[:3])
        places = map(np.int32, (*first, *at, *box.size))
        blocks = min(MOST_BLOCKS, -(-box.size.volume // THREADS))
        numbers = values, *strides, np.int32(len(values)), self._along, *places
        kernel = compiled(source(), options(dtype)).get_function(name)
        kernel((blocks,), (THREADS,), (*numbers, *arrays))


def source() -> str:
    """Return the CUDA source of ``resample`` and ``label_largest``."""
    return source_beside(__file__, "resample.cu")


def options(dtype: str) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return (f"-DLabel={TYPES[dtype]}",)


def _as_integers(columns: tuple[NDArray[Any], ...]) -> list[NDArray[np.int32]]:
    """Return columns of 32 bits each as integers with the same bits."""
    return [np.asarray(column).view(np.int32) for column in columns]
