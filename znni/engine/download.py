"""Downloads: copies of a GPU's outputs to the host, at the full speed of the link."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from znni.machine.cuda import cupy
from znni.machine.locked_arrays import LockedArrays


class Download:
    """Downloads of one array at a time, into page-locked memory.

    Attributes:
        stream: the stream that copies.
    """

    def __init__(self) -> None:
        self.stream = cupy().cuda.Stream(non_blocking=True)
        self._arrays = LockedArrays()

    def of(self, values: Any) -> NDArray[Any]:
        """Return a copy on the host. What the stream has not done yet is done first."""
        copy = self._arrays.array(values.shape, values.dtype)
        values.get(stream=self.stream, out=copy)
        return copy
