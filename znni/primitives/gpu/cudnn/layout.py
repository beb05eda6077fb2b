"""Kernels that bring arrays into cuDNN's layout, and its results out of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.cuda_kernels import compiled, source_beside
from znni.network.layers import Activation
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.kernels import strides_in_elements
from znni.primitives.gpu.cudnn.formats import Format

SIDE = 32
ROWS = 8
FILL_THREADS = 256


def source(number: Format, activation: Activation) -> str:
    """Return the CUDA source of ``pack``, ``unpack`` and ``fill``."""
    kernels = source_beside(__file__, "layout.cu")
    sizes = f"#define NUMBER {number.cuda_type}\n#define MAPS_LAST {int(number.channels_last)}\n"
    return sizes + activation_source(activation) + kernels


class Layout:
    """Packing for one number format and activation, on the current GPU."""

    def __init__(self, number: Format, activation: Activation) -> None:
        module = compiled(source(number, activation))
        self._pack = module.get_function("pack")
        self._unpack = module.get_function("unpack")
        self._fill = module.get_function("fill")

    def pack(self, x: Any, packed: Any) -> None:
        """Bring float32 (n, f, z, y, x) into cuDNN's layout.

        Args:
            x: an array whose last axis is contiguous.
            packed: memory for as many numbers of the format.
        """
        shape = Shape5(*x.shape)
        self._pack(*_grid(shape), (x, *strides_in_elements(x), packed, *_sizes(shape)))

    def unpack(self, packed: Any, bias: Any, y: Any) -> None:
        """Bring sums out of cuDNN's layout, through bias and activation.

        Args:
            packed: numbers of the format.
            bias: float32, one for each map.
            y: the array to write, as ``x`` in ``pack``.
        """
        shape = Shape5(*y.shape)
        self._unpack(*_grid(shape), (packed, bias, y, *strides_in_elements(y), *_sizes(shape)))

    def fill(self, packed: Any, count: int) -> None:
        """Write ``count`` numbers of the format that are not all equal."""
        blocks = -(-count // FILL_THREADS)
        self._fill((blocks,), (FILL_THREADS,), (packed, np.int64(count)))


def _grid(shape: Shape5) -> tuple[tuple[int], tuple[int, int]]:
    """Return blocks and threads."""
    return (shape.n * -(-shape.size.volume // SIDE),), (SIDE, ROWS)


def _sizes(shape: Shape5) -> list[np.int32]:
    return [np.int32(size) for size in (shape.f, shape.size.volume, shape.y, shape.x)]
