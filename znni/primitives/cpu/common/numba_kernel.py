"""Compilation of the CPU primitives' numba kernels, and the flat views that they take as input."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.lib.stride_tricks import as_strided

from znni.network.weights import Float32


def numba_kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function that holds neither the interpreter's lock nor references to arrays.

    It may slice arrays but not make any. Otherwise numba would count the references to every slice
    with atomic operations. Each of these waits until all stores before it have reached memory. If
    the output is larger than the caches, that takes longer than to compute it.

    Multiplications and additions may be fused, and a zero may lose its sign. Infinities and NaNs
    follow IEEE 754.
    """
    decorate: Callable[[Callable[..., None]], Callable[..., None]] = njit(  # type: ignore[call-overload]
        nogil=True, cache=True, fastmath={"contract", "nsz"}, _nrt=False
    )
    return decorate(function)


class FlatView(NamedTuple):
    """A strided view as flat memory and strides.

    A compiled kernel sees contiguous memory, over which it can be vectorised. It is compiled once
    for all layouts.

    Attributes:
        memory: values (span,), from the view's lowest address to its highest.
        start: index in ``memory`` of the view's first element.
        strides: elements from one index to the next, per axis.
    """

    memory: Float32
    start: int
    strides: tuple[int, ...]


def flat_view(x: Float32) -> FlatView:
    """Return the memory that ``x`` spans, uncopied and read-only."""
    strides = tuple(stride // x.itemsize for stride in x.strides)
    reach = [stride * (extent - 1) for stride, extent in zip(strides, x.shape, strict=True)]
    backwards = tuple(slice(None, None, -1 if distance < 0 else None) for distance in reach)
    span = 1 + sum(map(abs, reach))
    memory = as_strided(x[backwards], (span,), (x.itemsize,), writeable=False)
    start = -sum(distance for distance in reach if distance < 0)
    return FlatView(np.asarray(memory), start, strides)
