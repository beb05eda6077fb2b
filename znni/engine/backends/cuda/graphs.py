"""Recordings of a GPU's work: all kernels of a block are launched at once.

The host takes longer to launch a kernel than the GPU takes for a small one. A CUDA graph holds all
kernels of a block with their arguments, and takes one launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple

# Runs before work is recorded. The first one loads kernels, which a recording cannot do.
PLAIN_RUNS = 2

# The most recordings that are kept. Their memory on the GPU counts as the driver's (DRIVER_BYTES).
MOST_RECORDED = 16


class _Recorded(NamedTuple):
    """Work that can be launched again.

    Attributes:
        graph: the CUDA graph.
        made: the array that it makes.
    """

    graph: Any
    made: Any


class DeviceGraphs:
    """Launches work on a stream, and records work that comes again.

    Args:
        stream: the stream, which is not the GPU's default one.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._runs = Counter[Hashable]()
        self._recorded: dict[Hashable, _Recorded] = {}

    def __len__(self) -> int:
        """Return the number of recordings."""
        return len(self._recorded)

    def launch(
        self, key: Hashable, queue: Callable[[], Any], record: Callable[[], Any] | None = None
    ) -> Any:
        """Launch work, from its recording if there is one.

        Args:
            key: distinguishes the work from other work. It has all that the arguments of its
                kernels depend on.
            queue: queues the work on the current stream, which is this one. It returns the array
                that the work makes, which has the same place each time.
            record: queues the same work to be recorded; by default ``queue``.
        """
        recorded = self._recorded.get(key)
        if recorded is None:
            self._runs[key] += 1
            if self._runs[key] <= PLAIN_RUNS or len(self) >= MOST_RECORDED:
                return queue()
            recorded = self._recorded[key] = self._record(record or queue)
        recorded.graph.launch(self._stream)
        return recorded.made

    def _record(self, queue: Callable[[], Any]) -> _Recorded:
        """Record work without doing it."""
        self._stream.begin_capture()
        try:
            result = queue()
        except BaseException:
            with suppress(Exception):  # the first error counts
                self._stream.end_capture()
            raise
        return _Recorded(self._stream.end_capture(), result)
