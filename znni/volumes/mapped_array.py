"""Arrays that lie in files as they lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MappedArray:
    """An array of a file that is mapped into memory anew for each read.

    A mapping that stays open would keep every page read so far in the process's memory.

    Args:
        mapped: maps the file.
    """

    def __init__(self, mapped: Callable[[], NDArray[Any]]) -> None:
        self._mapped = mapped
        first = mapped()
        self.shape = first.shape
        self.dtype = first.dtype

    def __getitem__(self, key: Any, /) -> NDArray[Any]:
        return np.array(self._mapped()[key])
