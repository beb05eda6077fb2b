"""A warning about values in another range than the network's input has."""

from __future__ import annotations

from contextlib import suppress
from math import isclose

import numpy as np
from numpy.typing import DTypeLike

from znni.core.errors import Unreadable
from znni.core.logged import warn_once
from znni.core.shapes import Box, Vec3
from znni.network.network import Network
from znni.volumes.array import ArrayVolume

DIVISORS = (255, 4095, 65535)  # the largest values of 8, 12 and 16 bits
SAMPLE = Vec3(1, 64, 64)  # voxels: in most files, reading them reads one chunk or plane


def warn_of_range(volume: ArrayVolume, network: Network, part: Box) -> None:
    """Warn if a network divides by the largest value of a type, and the volume has another range.

    Args:
        part: voxels of the volume that have output; a sample in their middle is read.
    """
    divisor = _divisor(network.scaling.scale)
    if divisor is None or (_is_bytes(volume.dtype) and divisor == DIVISORS[0]):
        return
    extent = part.size.minimum(SAMPLE)
    start = part.start + (part.size - extent) // 2
    with suppress(Unreadable):  # if the run needs this box, it reports the error
        values = volume.read(Box(start, start + extent))
        largest = float(values.max())
        fractions = values.dtype.kind == "f" and 0 < largest <= 1
        if largest > divisor or fractions or _is_bytes(values.dtype):
            warn_once(
                f"{volume.name}: has values up to {largest:g} in its middle, as {values.dtype}, "
                f"and network {network.name} divides them by {divisor}; if that is wrong, scale "
                f"the volume to 0 to {divisor}, or change input: in a copy of the network file"
            )


def _divisor(scale: float) -> int | None:
    """Return the largest value of a type by which a network divides; None if by another number."""
    return next((one for one in DIVISORS if isclose(scale * one, 1, rel_tol=1e-3)), None)


def _is_bytes(dtype: DTypeLike) -> bool:
    """Return whether no value has more than 8 bits."""
    return np.dtype(dtype).itemsize == 1
