"""Times by a GPU's own clock, and arrays of which only what is asked for comes to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.rounds import Result
from znni.cuda import cupy


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds between events around work on the current stream."""
    start, stop = cupy().cuda.Event(), cupy().cuda.Event()
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return float(cupy().cuda.get_elapsed_time(start, stop)) / 1000


def measured(work: Callable[[], object], repeats: int) -> Result:
    """Seconds of so many runs, after one that is not counted."""
    work()
    return Result(tuple(seconds_of(work) for _ in range(repeats)))


class OnDevice:
    """An array on a GPU whose parts are NumPy arrays.

    Args:
        array: of CuPy or PyTorch.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = tuple(array.shape)

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        part = self._array[index]
        found = part.get() if hasattr(part, "get") else part.float().cpu().numpy()
        return np.asarray(found)
