"""Measurement of the memory that a block takes on its way from a patch to an output."""

from __future__ import annotations

import tracemalloc

import numpy as np

from znni.core.option_types import OutputType
from znni.core.shapes import Box, Vec3
from znni.core.volume import Output
from znni.engine.stages.convert import bytes_scaled, convert


def taken_and_counted(
    output: Output, features: int, size: Vec3, dtype: OutputType
) -> tuple[int, int]:
    """Return the bytes that writing a block takes at most, and the bytes that plans count for it.

    The count leaves out two float32 blocks. The block is a part of a patch, as when the last patch
    overlaps its neighbour.
    """
    dense = np.random.default_rng(0).random((features, *(size + 1)), np.float32)
    output.begin({}, size)
    box = Box(Vec3(0, 0, 0), size)
    tracemalloc.start()
    try:
        output.write(box, convert(dense[:, *box.slices], dtype))
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        output.abandon()
    return taken, (bytes_scaled(dtype) + np.dtype(dtype).itemsize) * features * size.volume
