"""Copies of the planes that a sweep carries, on a GPU."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from znni.core.shapes import AXES, Axis
from znni.machine.cuda_kernels import KernelModule, compiled, source_beside
from znni.machine.packed_arrays import PackedArray
from znni.plans.swept import KeptPlanes
from znni.primitives.gpu.common.kernels import common_code

THREADS = 256

# Values that a thread copies. With one, as in CuPy's copies, an H200 reached 38 % of its bandwidth.
VALUES = 8

# The binary logarithm of the values that a block copies, a power of two.
MOST_SHIFT = (THREADS * VALUES).bit_length() - 1


class PlaneCopies:
    """Copies of some planes of all maps, on the current GPU.

    Planes of a map lie in one piece if they follow one another along z. Else they lie in rows
    of one length, equally far apart: one in each plane across z, or one in each row along x. If
    rows along x have gaps between them, these are copied too.

    Args:
        axis: the axis along which planes follow one another.
    """

    def __init__(self, axis: Axis) -> None:
        self._across = 2 + AXES.index(axis)
        self._kernel = _compiled(source()).get_function("copy_planes")

    def __call__(self, planes: Any, into: Any) -> None:
        """Copy planes (n, f, z, y, x) on the current stream.

        Args:
            planes: the planes, which span the other axes of their array.
            into: takes them; it lies in the same way.
        """
        blocks, arguments = launch_of(planes, into, self._across)
        self._kernel((blocks,), (THREADS,), arguments)


class PackedPlaneCopies:
    """Copies of planes of packed values, whose scale may differ from block to block.

    Args:
        axis: the axis along which planes follow one another.
        copy: the copies of planes that keep their scale.
    """

    def __init__(self, axis: Axis, copy: PlaneCopies) -> None:
        self._across = 2 + AXES.index(axis)
        self._copy = copy
        module = _compiled(common_code("float16_pair.cuh") + packed_source())
        self._scaled, self._agree = map(module.get_function, ("copy_scaled", "agree"))

    def __call__(self, made: PackedArray, carried: PackedArray, kept: KeptPlanes) -> None:
        """Put carried planes before the new ones of a value, and carry its last ones.

        Afterwards, all planes have the smaller scale of both, which has room for the largest
        numbers.

        Args:
            made: the maps of the value, with all samples of their array.
            carried: the memory for the planes that are carried.
            kept: their places.
        """
        first, last = kept.first_and_last
        new = made.within(kept.new)
        self._scale(carried, made.within(first), made)
        self._scale(new, new, carried)
        groups = len(made.records)
        blocks = -(-groups // THREADS)
        self._agree((blocks,), (THREADS,), (made.records, carried.records, np.int32(groups)))
        self._copy(made.within(last).words, carried.words)

    def _scale(self, planes: PackedArray, into: PackedArray, other: PackedArray) -> None:
        """Copy planes with the scale that is common to their value and another one."""
        source, target = planes.words, into.words
        blocks, arguments = launch_of(source, target, self._across)
        rows = planes.parts * prod(source.shape[2 : self._across])
        records = planes.records, other.records, np.uint32(rows)
        self._scaled((blocks,), (THREADS,), (*arguments, *records))


def launch_of(planes: Any, into: Any, across: int) -> tuple[int, tuple[Any, ...]]:
    """Return the blocks of a launch that copies planes, and the kernel's arguments.

    Args:
        planes: the planes (n, f, z, y, x), which span the other axes of their array.
        into: takes them; it lies in the same way.
        across: the axis of the arrays along which planes follow one another.
    """
    rows = prod(planes.shape[:across])
    width = planes.shape[across] * planes.strides[across] // planes.itemsize
    shift = min(MOST_SHIFT, (width - 1).bit_length())
    parts = -(-width // 2**shift)
    strides = (np.int64(it.strides[across - 1] // it.itemsize) for it in (planes, into))
    arrays = zip((planes, into), strides, strict=True)
    sizes = np.int64(rows), np.int64(width), np.int32(shift), np.int32(parts)
    blocks = parts * -(-rows // 2 ** (MOST_SHIFT - shift))
    return blocks, (*(it for pair in arrays for it in pair), *sizes)


def _compiled(source: str) -> KernelModule:
    return compiled(source, (f"-DTHREADS={THREADS}", f"-DVALUES={VALUES}"))


def source() -> str:
    """Return the kernel in CUDA C++."""
    return source_beside(__file__, "carried.cu")


def packed_source() -> str:
    """Return the kernels for packed values in CUDA C++."""
    return source_beside(__file__, "carried_packed.cu")
