"""Packed values in tests: made from arrays of the host, and brought back."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.cuda import cupy
from znni.machine.packed_arrays import (
    GROUP,
    PackedArray,
    groups_for,
    in_whole_groups,
    packed_array,
)
from znni.network.weights import Float32


def packed(x: Float32, scale: float = 1.0, parts: int = 1, *, gaps: bool = False) -> PackedArray:
    """Return numbers packed on the GPU, times a scale; with gaps, within a larger array of NaN."""
    shape = Shape5(*x.shape)
    made = empty(shape, parts, gaps=gaps)
    n, f, *size = shape
    groups = groups_for(f)
    largest = np.abs(x[np.isfinite(x)]).max(initial=0)
    whole = np.full((n, GROUP * groups, *size), largest / 2, np.float32)  # numbers of no map
    whole[:, :f] = x
    whole *= np.float32(scale)
    left = whole.reshape(n, groups, GROUP, *size).transpose(0, 1, 3, 4, 5, 2)
    voxels = np.empty((n, groups, parts, *size, GROUP), np.float16)
    for part in range(parts):
        voxels[:, :, part] = left
        left = np.subtract(
            left, voxels[:, :, part], out=np.zeros_like(left), where=np.isfinite(left)
        )
    made.voxels[...] = cupy().asarray(voxels.reshape(made.voxels.shape))
    records = np.zeros((groups, 2), np.float32)
    records[0, 0], records[:, 1] = largest, scale
    made.records[...] = cupy().asarray(records.view(np.uint32))
    return made


def empty(shape: Shape5, parts: int = 1, *, gaps: bool = False) -> PackedArray:
    """Return a packed array of NaN, within a larger one if there are gaps."""
    more = int(gaps)
    n, f, z, y, x = shape
    around = Shape5(n, in_whole_groups(f) + 2 * GROUP * more, z + more, y + 2 * more, x + 3 * more)
    whole = packed_array(around if gaps else shape, parts)
    whole.voxels.fill(np.nan)
    box = Box(Vec3(0, more, more), Vec3(z, y + more, x + more))
    return whole.maps(GROUP * more, f).within(box)


def unpacked(made: PackedArray) -> Float32:
    """Return the numbers of a packed array, and check that its records bound them."""
    n, f, *size = made.shape
    records = made.records.get()
    scales = np.ascontiguousarray(records[:, 1]).view(np.float32)
    grouped = made.voxels.get().astype(np.float32).reshape(n, -1, made.parts, *size, GROUP)
    values = grouped.sum(axis=2) / scales[:, None, None, None, None]
    whole: Any = values.transpose(0, 1, 5, 2, 3, 4).reshape(n, -1, *size)
    found = whole[:, :f]
    kept = np.isfinite(found).all(axis=1)
    assert np.isfinite(whole.transpose(0, 2, 3, 4, 1)[kept]).all(), "others are finite, too"
    largest = np.ascontiguousarray(records[:, 0]).view(np.float32).max()
    assert np.abs(found[np.isfinite(found)]).max(initial=0) <= largest * np.float32(1.001)
    assert (np.frexp(scales)[0] == 0.5).all(), "a scale is a power of two"
    return found
