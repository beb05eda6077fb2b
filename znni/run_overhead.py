"""What a run takes beside its layers."""

from __future__ import annotations

from planner.overhead import Overhead
from znni.engine.device_patch import (
    DEVICE_BYTES,
    device_bytes_per_input_voxel,
    device_bytes_per_output_voxel,
)
from znni.engine.pipeline import bytes_per_input_voxel, bytes_per_output_voxel
from znni.options import OutputType

# What the interpreter, the libraries and code compiled at first use take, measured, with room.
PROCESS_BYTES = 512 * 2**20

# What CUDA, CuPy and the compiler take beside them.
CUDA_BYTES = 1024 * 2**20


def run_overhead(dtype: OutputType, input_itemsize: int, output_array: int = 0) -> Overhead:
    """What a run takes beside its layers.

    Args:
        dtype: of the output.
        input_itemsize: bytes of one stored input value.
        output_array: bytes of an array for the whole output, if the run makes one.
    """
    return Overhead(
        PROCESS_BYTES + output_array,
        bytes_per_input_voxel(input_itemsize),
        bytes_per_output_voxel(dtype),
        CUDA_BYTES,
        DEVICE_BYTES,
        device_bytes_per_input_voxel(),
        device_bytes_per_output_voxel(dtype),
    )
