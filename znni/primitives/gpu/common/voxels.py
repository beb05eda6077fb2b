"""Kernels that compute each voxel of an output from some voxels of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from znni.core.shapes import ZERO, Box, Shape5
from znni.machine.device_arena import new_device_output
from znni.plans.cost import Cost, Memory
from znni.primitives.gpu.common.hardware import MOST_GRID_ROWS
from znni.primitives.gpu.common.kernels import strides_in_elements

THREADS = 256

# Share of the nominal float32 rate. The bytes take longer than the operations at this share.
EFFICIENCY = 0.2

# Blocks of a launch, unless a plane has more. Each computes several planes: blocks of one voxel for
# each thread would take longer to begin than to compute.
BLOCKS = 2**14

# Kernels count the cells of a plane, and all planes, in 32 bits.
MOST = 2**31 - THREADS


def countable(shape: Shape5) -> bool:
    """Return whether kernels can count the cells of a plane and the planes."""
    return shape.y * shape.x <= MOST and shape.n * shape.f * shape.z <= MOST


def cost_by_voxel(
    shape: Shape5, out: Shape5, flops: float, resident: int = 0, workspace: int = 0
) -> Cost:
    """Return the cost of one pass over input and output.

    Args:
        shape: the shape of the input.
        out: the shape of the output.
        flops: the operations for each value of the output.
        resident: the bytes kept between calls.
        workspace: the bytes of workspace.
    """
    arrays = shape.nbytes + out.nbytes
    memory = Memory.beside(arrays, workspace, resident)
    return Cost(flops * out.elements, arrays, memory, EFFICIENCY, writes_views=True)


def launch(kernel: Any, out: Shape5, *arguments: Any) -> None:
    """Launch a kernel with a thread for each cell of a plane; the output's extents come last."""
    blocks = -(-out.y * out.x // THREADS)
    rows = min(out.n * out.f * out.z, MOST_GRID_ROWS, max(1, BLOCKS // blocks))
    kernel((blocks, rows), (THREADS,), (*arguments, *map(np.int32, out)))


def seeing_edges(kernel: Any, shape: Shape5, out: Shape5) -> Callable[[Any, Box | None], Any]:
    """Return what runs a kernel that treats samples beyond the volume differently.

    Args:
        kernel: takes an input, an output, and the first sample of the input inside the volume and
            the one after the last.
        shape: the shape of the input.
        out: the shape of the output. It is 0 if no sample of the input is inside.
    """
    whole = Box(ZERO, shape.size)

    def run(x: Any, inside: Box | None = None) -> Any:
        y, seen = new_device_output(out), whole.intersection(inside or whole)
        if seen is None:
            y.fill(0)
            return y
        launch(kernel, out, *strided(x), *strided(y), *map(np.int32, (*seen.start, *seen.stop)))
        return y

    return run


def strided(array: Any) -> tuple[Any, ...]:
    """Return an array as a kernel takes it: its address, and the strides of all axes but x."""
    return array, *strides_in_elements(array)


def strided_along_x(array: Any) -> tuple[Any, ...]:
    """Return an array as ``strided`` does, and the stride along x, which may run backwards."""
    return *strided(array), np.int64(array.strides[-1] // array.itemsize)
