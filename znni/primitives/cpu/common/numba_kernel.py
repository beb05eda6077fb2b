"""Compilation of the CPU primitives' numba kernels, and the flat views of arrays that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from znni.network.weights import Float32
from znni.primitives.cpu.common.lazy_kernel import lazy_njit
from znni.primitives.cpu.common.native_kernel import NativeKernel


def numba_kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function that holds neither the interpreter's lock nor references to arrays.

    It may slice arrays but not make any. Otherwise numba would count the references to every slice
    with atomic operations. Each of these waits until all stores before it have reached memory. If
    the output is larger than the caches, that takes longer than to compute it.

    Multiplications and additions may be fused, and a zero may lose its sign. Infinities and NaNs
    follow IEEE 754, in divisions by zero too: a test for zero would keep loops from vectors.
    """
    return _compiled(function, {"contract", "nsz"})


def summing_kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function as ``numba_kernel`` does, with sums in an order that suits vectors.

    On one machine, the order depends only on how many values are added.
    """
    return _compiled(function, {"contract", "nsz", "reassoc"})


def _compiled(function: Callable[..., None], fast: set[str]) -> Callable[..., None]:
    return NativeKernel(function, nogil=True, fastmath=fast, error_model="numpy", _nrt=False)


@lazy_njit(nogil=True, inline="always")
def larger(a, b):  # type: ignore[no-untyped-def]
    """Return the larger of two numbers, or NaN if either is NaN."""
    return a if a >= b or a != a else b  # noqa: PLR0124 - only a NaN differs from itself


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
    """Return the memory that an input spans, uncopied and read-only."""
    return _flat(x, writeable=False)


def output_view(y: Float32) -> FlatView:
    """Return the memory that an output spans, to be written between its first and last element.

    The memory also holds what lies between the output's rows. A kernel must not touch it.
    """
    return _flat(y, writeable=True)


def _flat(array: Float32, *, writeable: bool) -> FlatView:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    reach = [stride * (extent - 1) for stride, extent in zip(strides, array.shape, strict=True)]
    backwards = tuple(slice(None, None, -1 if distance < 0 else None) for distance in reach)
    span = 1 + sum(map(abs, reach))
    memory = as_strided(array[backwards], (span,), (array.itemsize,), writeable=writeable)
    start = -sum(distance for distance in reach if distance < 0)
    return FlatView(np.asarray(memory), start, strides)


def longest_rows(*arrays: Float32) -> tuple[Float32, ...]:
    """Return views of arrays (n, f, z, y, x) of one size with rows as long as possible.

    Rows and planes that follow each other without a gap in all of the arrays become one row. The
    extents of the axes that were joined to it are 1.
    """
    for axis in (3, 2):
        shape, row = arrays[0].shape, arrays[0].shape[-1]
        if shape[axis] > 1 and any(a.strides[axis] != a.itemsize * row for a in arrays):
            break
        joined = (*(1,) * (4 - axis), shape[axis] * row)
        arrays = tuple(array.reshape(*array.shape[:axis], *joined) for array in arrays)
    return arrays
