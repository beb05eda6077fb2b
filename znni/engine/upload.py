"""Tensors of the host on their way to a GPU, some items at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import Arena
from znni.machine.cuda import cupy
from znni.network.weights import Float32


class Span(NamedTuple):
    """What a stream does between two events."""

    before: Any
    after: Any

    @property
    def seconds(self) -> float:
        """How long that took; known once the second event has come to pass."""
        return float(cupy().cuda.get_elapsed_time(self.before, self.after)) * 1e-3


class Upload:
    """Brings tensors to a GPU, into two places in turns: one is filled as the other is computed on.

    Args:
        part: the shape of what is brought at a time.
        compute: the stream that reads it.
    """

    def __init__(self, part: Shape5, compute: Any) -> None:
        self.compute = compute
        self.stream = cupy().cuda.Stream(non_blocking=True)
        self._places = cycle((Place(part), Place(part)))

    def next_place(self) -> Place:
        """The one that was filled before the last."""
        return next(self._places)

    @contextmanager
    def of(self, values: Float32) -> Iterator[Parts]:
        """Serve the parts of a tensor within a ``with`` block; by its end it may be overwritten."""
        parts = Parts(self, values)
        yield parts
        parts.finish()


class Parts:
    """A tensor of the host, whose parts are on the GPU when they are asked for, each once.

    Args:
        upload: brings them.
        values: the tensor (n, f, z, y, x).

    Attributes:
        copied: the copy of each part.
        computed: what the compute stream did with each, from when it was there.
    """

    def __init__(self, upload: Upload, values: Float32) -> None:
        self._upload = upload
        self._values = values
        self._at_work: tuple[Place, Any] | None = None
        self.copied: list[Span] = []
        self.computed: list[Span] = []

    def __getitem__(self, items: slice) -> Any:
        """Some items, for what the compute stream is asked to do until the next are asked for."""
        self._let_go()
        upload, place = self._upload, self._upload.next_place()
        upload.stream.wait_event(place.read)
        before = _now(upload.stream)
        place.x.set(self._values[items], stream=upload.stream)
        self.copied.append(Span(before, _now(upload.stream)))
        upload.compute.wait_event(self.copied[-1].after)
        self._at_work = place, _now(upload.compute)
        return place.x

    def finish(self) -> None:
        """Wait until the last part is brought, which may still be computed on."""
        self._let_go()
        self.copied[-1].after.synchronize()

    def _let_go(self) -> None:
        """The last part's place is free when all that was asked for until now is done."""
        if self._at_work:
            place, before = self._at_work
            place.read = _now(self._upload.compute)
            self.computed.append(Span(before, place.read))


class Place:
    """Memory of the GPU for a part.

    Attributes:
        x: the part.
        read: when it has been computed on.
    """

    def __init__(self, part: Shape5) -> None:
        self.x = cupy().empty(part, np.float32)
        self.read = cupy().cuda.Event()


def pinned(shape: Shape5) -> Float32:
    """An array of the host that a GPU copies from at the full speed of the link.

    Raises:
        cupy.cuda.runtime.CUDARuntimeError: the system does not lock so many pages.
    """
    memory: Any = Arena(shape.nbytes, page_locked=True).take(shape.nbytes)
    return np.frombuffer(memory, np.float32, shape.elements).reshape(shape)


def _now(stream: Any) -> Any:
    """When a stream will have done what it was asked for so far; who waits for it sleeps."""
    return stream.record(cupy().cuda.Event(block=True))
