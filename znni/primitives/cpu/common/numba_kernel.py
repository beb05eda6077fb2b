"""How the numba kernels of the CPU primitives are compiled."""

from __future__ import annotations

from collections.abc import Callable

from numba import njit


def numba_kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function that holds neither the interpreter's lock nor references to arrays.

    It may slice arrays but not make any. numba would count the references to every slice with
    atomic operations, each of which waits until all stores before it have reached memory; where
    the output is larger than the caches, that takes longer than to compute it.

    Multiplications and additions may be fused, and a zero lose its sign. Infinities and NaNs are
    as IEEE 754 has them.
    """
    decorate: Callable[[Callable[..., None]], Callable[..., None]] = njit(  # type: ignore[call-overload]
        nogil=True, cache=True, fastmath={"contract", "nsz"}, _nrt=False
    )
    return decorate(function)
