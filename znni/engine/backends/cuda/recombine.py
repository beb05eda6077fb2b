"""Recombination of fragments into dense output, on a GPU.

``plans/fragments.py`` gives the positions. The primitives of pooling make the fragments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.core.option_types import OutputType
from znni.core.shapes import Vec3
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside

THREADS = 256
MOST_BLOCKS = 1 << 20  # with more values, each thread takes several


class DeviceRecombination:
    """The recombination of fragments into dense outputs, in the type in which they are stored.

    Args:
        patch: the extents of an output.
        dtype: the type of its values.
    """

    def __init__(self, patch: Vec3, dtype: OutputType) -> None:
        self._patch = patch
        self._kernel = compiled(source(), (stored_as(dtype),)).get_function("recombine")
        self._starts: dict[tuple[Vec3, ...], Any] = {}

    def __call__(self, fragments: Any, at: tuple[Vec3, ...], stride: Vec3, dense: Any) -> None:
        """Write fragments (n, f, z, y, x) to their positions in the output (f, Z, Y, X).

        Voxels go where ``recombine`` of ``znni.engine.backends.host`` writes them. The kernel also
        converts them, as ``znni.engine.stages.convert`` does. The current stream runs it.
        """
        if at not in self._starts:  # the same in every patch
            self._starts[at] = cupy().asarray(starts(at, self._patch))
        _, maps, *size = fragments.shape
        steps = stride * Vec3(self._patch.y * self._patch.x, self._patch.x, 1)
        blocks = min(-(-fragments.size // THREADS), MOST_BLOCKS)
        numbers = (
            np.int64(fragments.size),
            *map(np.int32, (maps, *size)),
            *map(np.int64, (self._patch.volume, *steps)),
        )
        strides = [np.int64(stride // fragments.itemsize) for stride in fragments.strides[:-1]]
        arrays = (fragments, *strides, self._starts[at], dense)
        self._kernel((blocks,), (THREADS,), (*arrays, *numbers))


def starts(at: tuple[Vec3, ...], patch: Vec3) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return where fragments at these positions begin in a map of the output.

    The results are indices into the map's voxels in a row.
    """
    return np.array([(p.z * patch.y + p.y) * patch.x + p.x for p in at], np.int64)


def source() -> str:
    """Return the kernel in CUDA C++."""
    return source_beside(__file__, "recombine.cu")


def stored_as(dtype: OutputType) -> str:
    """Return the compiler option that sets the kernel's output type."""
    return f"-DSTORED_{dtype.upper()}"
