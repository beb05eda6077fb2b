"""Memory that two processes share, where a patch comes in and goes out."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.options import OutputType
from znni.network.weights import Float32

# Of each worker: while a patch is computed the next is read and the last one written.
SLOTS = 3


def slots_bytes_per_input_value() -> int:
    """Host bytes that a worker's slots take per value of a block."""
    return SLOTS * 4


def slots_bytes_per_output_value(dtype: OutputType) -> int:
    """Host bytes that they take per value of an output."""
    return SLOTS * np.dtype(dtype).itemsize


@dataclass(frozen=True)
class SlotShape:
    """What a slot holds.

    Attributes:
        block: extents (f, z, y, x) of a patch's input, float32.
        dense: extents (f', Z, Y, X) of its output.
        dtype: of the output.
    """

    block: tuple[int, ...]
    dense: tuple[int, ...]
    dtype: OutputType

    @property
    def block_bytes(self) -> int:
        """Bytes of the input."""
        return prod(self.block) * np.dtype(np.float32).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.block_bytes + prod(self.dense) * np.dtype(self.dtype).itemsize


class Slot:
    """A patch's input and output, in memory that has no name and ends with those who use it.

    Not of ``/dev/shm``, of which containers give some 64 MiB.

    Attributes:
        shape: what it holds.
        descriptor: of the memory, for the other process.
        block: the input (f, z, y, x).
        dense: the output (f', Z, Y, X).
    """

    def __init__(self, shape: SlotShape, descriptor: int | None = None) -> None:
        """Make one, or find the one that another process made.

        Raises:
            OSError: the system has no memory for it.
        """
        if descriptor is None:
            descriptor = os.memfd_create("znni")
            os.truncate(descriptor, shape.nbytes)
        self.shape = shape
        self.descriptor = descriptor
        memory = mmap.mmap(descriptor, shape.nbytes)
        self.block: Float32 = np.frombuffer(memory, np.float32, prod(shape.block)).reshape(
            shape.block
        )
        self.dense: NDArray[Any] = np.frombuffer(
            memory, shape.dtype, prod(shape.dense), shape.block_bytes
        ).reshape(shape.dense)

    def close(self) -> None:
        """Give the descriptor back; the memory stays as long as an array refers to it."""
        os.close(self.descriptor)
