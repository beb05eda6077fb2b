"""Lanes without a GPU: three streams run their work in any order that their events allow."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import output_into
from znni.network.layers import Activation
from znni.network.weights import Float32
from znni.plans.primitive import Run
from znni.primitives import reference


class Event(NamedTuple):
    """A position in a stream's work."""

    stream: ShuffledStream
    position: int


class ShuffledStream:
    """Runs its work in order; each piece waits for the events before it."""

    def __init__(self) -> None:
        self.done = 0
        self.asked: list[Callable[[], None] | Event] = []

    def record(self) -> Event:
        return Event(self, len(self.asked))

    def wait_event(self, event: Event) -> None:
        self.asked.append(event)

    @property
    def ready(self) -> bool:
        """Return whether the next piece of work may begin."""
        if self.done == len(self.asked):
            return False
        work = self.asked[self.done]
        return not isinstance(work, Event) or work.stream.done >= work.position

    def step(self) -> None:
        work = self.asked[self.done]
        if not isinstance(work, Event):
            work()
        self.done += 1


class ShuffledLanes:
    """Runs pieces of randomly chosen streams when a caller waits for the work."""

    def __init__(self, activation: Activation, seed: int) -> None:
        self.uploading, self.computing, self.downloading = (ShuffledStream() for _ in range(3))
        self.allocated = 0
        self.uploaded = 0
        self.downloaded = 0
        self._activation: Activation = activation
        self._random = Random(seed)

    def buffer(self, shape: Shape5) -> Float32:
        self.allocated += shape.nbytes
        return np.full(shape, np.nan, np.float32)

    def upload(self, x: Float32, into: Float32) -> None:
        self.uploaded += x.nbytes
        self.uploading.asked.append(lambda: np.copyto(into, x))

    def download(self, y: Float32, into: Float32) -> None:
        self.downloaded += y.nbytes
        self.downloading.asked.append(lambda: np.copyto(into, y))

    def call(self, run: Run, x: Float32, into: Float32) -> None:
        def work() -> None:
            with output_into(into):
                run(x)

        self.computing.asked.append(work)

    def add(self, partial: Float32, into: Float32, *, last: bool) -> None:
        def work() -> None:
            np.add(into, partial, out=into)
            if last:
                into[...] = reference.activation(into, self._activation)

        self.computing.asked.append(work)

    def wait(self) -> None:
        streams = self.uploading, self.computing, self.downloading
        while ready := [stream for stream in streams if stream.ready]:
            self._random.choice(ready).step()
        assert all(stream.done == len(stream.asked) for stream in streams), "streams wait for ever"
