"""Memory that goes back to the system the moment that it is freed.

``malloc`` keeps freed blocks of up to some tens of megabytes, so a primitive that frees one array
before it allocates the next could still hold both. What is mapped is unmapped when freed.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def empty_mapped(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of zeros, C-contiguous and page-aligned, on pages of its own."""
    dtype = np.dtype(dtype)
    nbytes = max(1, math.prod(shape) * dtype.itemsize)
    if hasattr(mmap, "MAP_PRIVATE"):
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:  # Windows
        pages = mmap.mmap(-1, nbytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)
