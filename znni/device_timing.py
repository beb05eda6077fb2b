"""Repeated measurements of a time, by a GPU's own clock."""

from __future__ import annotations

from collections.abc import Callable

from znni.cuda import cupy
from znni.timing import Timing


def timed_on_device(function: Callable[[], object], repeats: int) -> Timing:
    """Call a function once to warm up, and then time what it asks of the current stream.

    The host waits for each call's end, so that none is timed while the next one is prepared.

    Args:
        function: what to time.
        repeats: timed calls; at least one.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the GPU fails.
    """
    function()
    return Timing(tuple(seconds_on_device(function) for _ in range(repeats)))


def seconds_on_device(function: Callable[[], object]) -> float:
    """Seconds of what a single call asks of the current stream; the host waits for its end.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the GPU fails.
    """
    event = cupy().cuda.Event
    start, stop = event(), event()
    start.record()
    function()
    stop.record()
    stop.synchronize()
    return float(cupy().cuda.get_elapsed_time(start, stop)) * 1e-3
