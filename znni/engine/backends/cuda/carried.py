"""Copies of the planes that a sweep carries, on a GPU."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from znni.core.shapes import AXES, Axis
from znni.machine.cuda_kernels import compiled, source_beside

THREADS = 256

# Values that a thread copies. With one, as in CuPy's copies, an H200 reached 38 % of its bandwidth.
VALUES = 8

# The binary logarithm of the values that a block copies, a power of two.
MOST_SHIFT = (THREADS * VALUES).bit_length() - 1


class PlaneCopies:
    """Copies of some planes of all maps, on the current GPU.

    Planes of a map lie in one piece if they follow one another along z. Else they lie in rows
    of one length, equally far apart: one in each plane across z, or one in each row along x.

    Args:
        axis: the axis along which planes follow one another.
    """

    def __init__(self, axis: Axis) -> None:
        self._across = 2 + AXES.index(axis)
        options = f"-DTHREADS={THREADS}", f"-DVALUES={VALUES}"
        self._kernel = compiled(source(), options).get_function("copy_planes")

    def __call__(self, planes: Any, into: Any) -> None:
        """Copy planes (n, f, z, y, x) on the current stream.

        Args:
            planes: the planes, in an array without other gaps.
            into: takes them; it lies in the same way.
        """
        rows, width = prod(planes.shape[: self._across]), prod(planes.shape[self._across :])
        shift = min(MOST_SHIFT, (width - 1).bit_length())
        parts = -(-width // 2**shift)
        strides = (np.int64(it.strides[self._across - 1] // it.itemsize) for it in (planes, into))
        arrays = zip((planes, into), strides, strict=True)
        arguments = (it for pair in arrays for it in pair)
        blocks = parts * -(-rows // 2 ** (MOST_SHIFT - shift))
        sizes = np.int64(rows), np.int64(width), np.int32(shift), np.int32(parts)
        self._kernel((blocks,), (THREADS,), (*arguments, *sizes))


def source() -> str:
    """Return the kernel in CUDA C++."""
    return source_beside(__file__, "carried.cu")
