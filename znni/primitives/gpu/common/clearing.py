"""Samples of a block outside of the volume, set to zero on a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from znni.core.shapes import ZERO, Box, Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.primitives.gpu.common.hardware import LANES
from znni.primitives.gpu.common.kernels import strides_in_elements

THREADS = 256
MOST_BLOCKS = 2048


def source() -> str:
    """Return the CUDA source of ``clear_outside``."""
    return source_beside(__file__, "clearing.cu")


@cache
def clearing_kernel() -> Any:
    """Return the kernel of ``clear_outside``, so that it is loaded with others."""
    return compiled(source()).get_function("clear_outside")


def clear_outside(values: Any, inside: Box) -> None:
    """Set the values (n, f, z, y, x) outside a box to zero, on the GPU where they lie.

    Gaps between rows may become zero, too.

    Args:
        inside: the box, which lies within them and may be empty.
    """
    if inside == Box(ZERO, Vec3(*values.shape[2:])):
        return
    rows = values.size // values.shape[4]
    blocks = min(MOST_BLOCKS, -(-rows * LANES // THREADS))
    sizes = map(np.int32, (*values.shape, *inside.start, *inside.stop))
    clearing_kernel()((blocks,), (THREADS,), (values, *strides_in_elements(values), *sizes))
