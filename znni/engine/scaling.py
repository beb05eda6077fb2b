"""The scaling of stored values to the input of a network.

The host scales values piece by piece as it reads them. Small integers may be left as they are
stored: a GPU then scales a whole block. So the block is a quarter or half of the bytes in memory,
and on its way to the GPU. Both give the same numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import ZERO, Box, Vec3
from znni.network.input_scaling import Fixed, InputScaling
from znni.network.network import Network
from znni.network.weights import Float32

# Bytes of the largest values that a GPU scales. Two blocks of such values take as much of its
# memory as one of float32.
MOST_STORED_BYTES = 2


# The most scalings of input for which an answer is cached: whether values stay finite.
MOST_SCALINGS = 64


class StoredScaling(NamedTuple):
    """The scaling that a block of stored values still needs.

    Attributes:
        scaling: how values are scaled.
        fixed: the numbers by which each map is normalized; None for each map that is not.
        known: the voxels of the block whose values count. The network sees zeros elsewhere.
    """

    scaling: InputScaling
    fixed: tuple[Fixed | None, ...]
    known: Box

    def scaled(self, stored: NDArray[Any]) -> Float32:
        """Return what the network sees of some known voxels (f, z, y, x)."""
        scaled_values = np.empty(stored.shape, np.float32)
        for values, planes, fixed in zip(stored, scaled_values, self.fixed, strict=True):
            scale(values, planes, self.scaling, fixed, checks=False)
        return scaled_values

    def behind(self, planes: Vec3) -> StoredScaling:
        """Return the scaling of the block with planes of zeros before it."""
        return self._replace(known=self.known.shifted(planes))

    def within(self, box: Box) -> StoredScaling:
        """Return the scaling of the part of the block in a box."""
        known = self.known.intersection(box)
        seen = known.shifted(ZERO - box.start) if known else Box(ZERO, ZERO)
        return self._replace(known=seen)


def scaled_on_gpu(network: Network, dtype: np.dtype[Any]) -> bool:
    """Return whether a GPU scales the input of a network itself, if its first layers are there.

    It takes integers of one or two bytes, if none becomes infinite. Windows are cut out of a block
    by the host, which also has to know where all maps are 0.

    Args:
        network: the network.
        dtype: the type of the stored values.
    """
    small = dtype.kind in "iu" and dtype.itemsize <= MOST_STORED_BYTES
    if not small or network.window or network.scaling.within == "nonzero":
        return False
    scaling = network.scaling
    rules = scaling.statistics or scaling.of_maps(network.in_features)
    if not rules:
        return stay_finite(scaling, (None,), dtype)
    # Statistics that are not known yet will leave the values finite from which they are taken.
    known = tuple(rule for rule in rules if isinstance(rule, Fixed))
    return stay_finite(scaling, known, dtype)


def fixed_of_maps(scaling: InputScaling, maps: int) -> tuple[Fixed | None, ...]:
    """Return the numbers by which each map is normalized; None for each map that is not."""
    return scaling.fixed(maps) or (None,) * maps


@lru_cache(maxsize=MOST_SCALINGS)
def stay_finite(
    scaling: InputScaling, each: tuple[Fixed | None, ...], dtype: np.dtype[Any]
) -> bool:
    """Return whether all values of a type are finite when they are scaled.

    Args:
        scaling: how values are scaled.
        each: the numbers of each map, from ``fixed_of_maps``.
        dtype: the type of the stored values.
    """
    if dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    ends = np.array((limits.min, limits.max), np.float32)
    return all(scale(ends, np.empty_like(ends), scaling, fixed) for fixed in each)


def scale(
    stored: NDArray[Any],
    planes: Float32,
    scaling: InputScaling,
    fixed: Fixed | None,
    *,
    checks: bool = True,
) -> bool:
    """Scale stored values, and return whether all are finite, which holds if it is not checked.

    Numbers that normalize are used in the order of nnU-Net's steps, which sets their rounding.

    Args:
        stored: the values of a map.
        planes: takes what they become.
        scaling: how they are scaled.
        fixed: the numbers by which they are normalized, if they are.
        checks: whether they are checked.
    """
    finite = True
    with np.errstate(over="ignore", invalid="ignore"):  # the check finds what overflows
        np.copyto(planes, stored, casting="unsafe")
        if fixed is None:
            if scaling.scale != 1:
                planes *= np.float32(scaling.scale)
            if scaling.offset:
                planes += np.float32(scaling.offset)
        else:
            finite = not checks or _all_finite(planes)  # before what is infinite is clipped
            if fixed.clip:
                np.clip(planes, np.float32(fixed.clip[0]), np.float32(fixed.clip[1]), out=planes)
            planes -= np.float32(fixed.mean)
            planes /= np.float32(fixed.std)
    return finite and (not checks or _all_finite(planes))


def _all_finite(planes: Float32) -> bool:
    return bool(np.isfinite(planes.min()) and np.isfinite(planes.max()))  # NaN: both
