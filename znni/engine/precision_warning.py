"""A warning about integers that are too large for any floating-point type to hold."""

from __future__ import annotations

import logging
from threading import Lock
from typing import Any
from weakref import WeakSet

from numpy.typing import NDArray

from znni.core.volume import Volume

EXACT = 2**53  # float64 holds all integers up to here
WIDE = 8  # bytes of integers that may be larger

log = logging.getLogger("znni")
_warned: WeakSet[Volume] = WeakSet()
_warning = Lock()


def warn_of_large_integers(volume: Volume, values: NDArray[Any]) -> None:
    """Warn, once for each volume, if values are integers beyond 2^53."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < WIDE or volume in _warned:
        return
    low, high = int(values.min()), int(values.max())
    if max(-low, high) <= EXACT:
        return
    with _warning:
        if volume in _warned:
            return
        _warned.add(volume)
        log.warning(
            "the volume holds integers beyond 2^53, such as %d: the network sees float32, which "
            "keeps about 7 digits of them; give an image, or subtract an offset first",
            high if high > EXACT else low,
        )
