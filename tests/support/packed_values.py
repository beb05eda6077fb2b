"""Packed values in tests: made from arrays of the host, and brought back."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.cuda import cupy
from znni.machine.packed_arrays import GROUP, PackedArray, packed_array
from znni.network.weights import Float32


def packed(x: Float32, scale: float = 1.0, parts: int = 1, *, gaps: bool = False) -> PackedArray:
    """Return numbers packed on the GPU, times a scale; with gaps, within a larger array of NaN."""
    shape = Shape5(*x.shape)
    made = empty(shape, parts, gaps=gaps)
    n, f, *size = shape
    left = (x * np.float32(scale)).reshape(n, f // GROUP, GROUP, *size).transpose(0, 1, 3, 4, 5, 2)
    voxels = np.empty((n, f // GROUP, parts, *size, GROUP), np.float16)
    for part in range(parts):
        voxels[:, :, part] = left
        left = np.subtract(
            left, voxels[:, :, part], out=np.zeros_like(left), where=np.isfinite(left)
        )
    made.voxels[...] = cupy().asarray(voxels.reshape(made.voxels.shape))
    records = np.zeros((f // GROUP, 2), np.float32)
    records[0, 0], records[:, 1] = np.abs(x[np.isfinite(x)]).max(initial=0), scale
    made.records[...] = cupy().asarray(records.view(np.uint32))
    return made


def empty(shape: Shape5, parts: int = 1, *, gaps: bool = False) -> PackedArray:
    """Return a packed array of NaN, within a larger one if there are gaps."""
    more = int(gaps)
    n, f, z, y, x = shape
    around = Shape5(n, f + 2 * GROUP * more, z + more, y + 2 * more, x + 3 * more)
    whole = packed_array(around, parts)
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
    found: Any = values.transpose(0, 1, 5, 2, 3, 4).reshape(n, f, *size)
    largest = np.ascontiguousarray(records[:, 0]).view(np.float32).max()
    assert np.abs(found[np.isfinite(found)]).max(initial=0) <= largest * np.float32(1.001)
    assert (np.frexp(scales)[0] == 0.5).all(), "a scale is a power of two"
    return found
