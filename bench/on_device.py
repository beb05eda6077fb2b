"""Arrays that may not be in the host's memory, of which only what is asked for comes there."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Elsewhere(Protocol):
    """An array, wherever it is, whose parts are NumPy arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    def __getitem__(self, index: Any, /) -> Any:
        """A part."""


class OnDevice:
    """An array of CuPy or PyTorch whose parts are NumPy arrays.

    Args:
        array: wherever it is.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = tuple(array.shape)

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        part = self._array[index]
        found = part.get() if hasattr(part, "get") else part.float().cpu().numpy()
        return np.asarray(found)
