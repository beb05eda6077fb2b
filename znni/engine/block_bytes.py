"""The bytes that a run takes for its blocks, on the host and on a GPU.

Plans count these bytes, and need no other module of the engine.
"""

from __future__ import annotations

import numpy as np

from znni.core.options import OutputType
from znni.core.shapes import FLOAT_BYTES
from znni.machine.device_arena import capacity_with_alignment

# Bytes for the driver: it rounds allocations up, and it keeps memory for kernels and libraries once
# they are called. All primitives together take 30 MiB (`python -m bench exercise --memory`). With
# recordings of all its blocks, a U-Net took 48.3 MiB on an H100.
DRIVER_BYTES = 56 * 2**20

DEVICE_BYTES = capacity_with_alignment(0) + DRIVER_BYTES


def bytes_of_reading(itemsize: int) -> int:
    """Return the host bytes that reading takes for each value of a block, beside the block.

    It holds the whole block as it is stored, or pieces of it. Threads also hold pieces as float32.
    """
    return 2 * itemsize


def bytes_per_input_voxel(itemsize: int) -> int:
    """Return the host bytes of a block that is read ahead as float32."""
    return FLOAT_BYTES + bytes_of_reading(itemsize)


def bytes_per_blended_voxel(dtype: OutputType) -> int:
    """Return the host bytes of a block of windows as it is stored, and of a copy of it.

    The sums of windows are not among them. One block is being written while the next is computed.
    """
    made = 0 if dtype == "float32" else np.dtype(dtype).itemsize
    return made + (FLOAT_BYTES if dtype == "uint8" else 0) + 2 * np.dtype(dtype).itemsize


def bytes_per_output_voxel(dtype: OutputType) -> int:
    """Return the host bytes of a block computed, one being written, and a copy of it as stored.

    HDF5 makes such a copy of float32 values that are not contiguous. uint8 is scaled in float32
    first.
    """
    scaled = FLOAT_BYTES if dtype == "uint8" else 0
    return 2 * FLOAT_BYTES + scaled + np.dtype(dtype).itemsize


def device_bytes_per_input_value() -> int:
    """Return the GPU bytes per value of the first segment's next input.

    Its current input counts as the layers' memory. Of stored values, which take a half or less, two
    inputs are beside the current one.
    """
    return FLOAT_BYTES


def device_bytes_per_output_voxel(dtype: OutputType) -> int:
    """Return the GPU bytes per voxel of two outputs: one computed, and one on its way out."""
    return 2 * np.dtype(dtype).itemsize
