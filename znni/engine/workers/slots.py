"""Memory that two processes share, through which a patch comes in and its output goes out."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from math import prod
from threading import Event
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.option_types import OutputType
from znni.core.shapes import round_up
from znni.engine.labels import LabelType
from znni.machine.arena import give_back_shared, touch_shared
from znni.machine.arrays import ALIGNMENT, front

# The type of an output: of values, or of labels.
SlotType: TypeAlias = OutputType | LabelType


@dataclass(frozen=True)
class SlotShape:
    """The shape of a slot.

    Attributes:
        block: the most extents (f, z, y, x) of a patch's input.
        itemsize: the bytes of its values.
        dense: the most extents (f', Z, Y, X) of its output, of values or of labels.
        dtype: the type of the output.
    """

    block: tuple[int, ...]
    itemsize: int
    dense: tuple[int, ...]
    dtype: SlotType

    @property
    def block_bytes(self) -> int:
        """Bytes of the input, and up to where the output begins."""
        return round_up(prod(self.block) * self.itemsize, ALIGNMENT)

    @property
    def nbytes(self) -> int:
        """Bytes of the input and the output."""
        return self.block_bytes + prod(self.dense) * np.dtype(self.dtype).itemsize


class Slot:
    """A patch's input and output, in memory without a name that ends with the processes using it.

    The memory is not in ``/dev/shm``, because containers often limit that to 64 MiB.

    Attributes:
        shape: what it holds.
        dense: room for the output (f', Z, Y, X).
    """

    def __init__(self, shape: SlotShape, descriptor: int) -> None:
        """Map memory that another process maps too. Its extent is set here, if it is not yet.

        Raises:
            OSError: the system has no memory for it.
        """
        os.truncate(descriptor, shape.nbytes)
        self.shape = shape
        memory = mmap.mmap(descriptor, shape.nbytes)
        self._bytes = np.frombuffer(memory, np.uint8)
        self.dense: NDArray[Any] = np.frombuffer(
            memory, shape.dtype, prod(shape.dense), shape.block_bytes
        ).reshape(shape.dense)

    def block(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return the array of an input (f, z, y, x), as every ``Allocate`` does."""
        return front(self._bytes[: self.shape.block_bytes].view(dtype), shape)

    def touch(self, over: Event) -> None:
        """Have the system provide the memory, and map it for this process.

        Without this, each block waits for it that is the first in a slot: half a second for a
        gigabyte, in either process. The slot may be in use meanwhile.

        Args:
            over: ends this early once it is set.
        """
        touch_shared(self._bytes, over)

    def free_input(self) -> None:
        """Give the memory of the input back to the system. Nobody may use it any more."""
        give_back_shared(self._bytes[: self.shape.block_bytes])

    def free(self) -> None:
        """Give all memory back to the system. Nobody may use it any more."""
        give_back_shared(self._bytes)
