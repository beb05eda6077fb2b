"""The loop over a layer's pieces: bring a piece's input, compute it, bring its output back.

The three steps run at the same time, each in order, for different pieces. Events alone say when a
step may begin, so the loop asks for all work at once, and its caller waits. ``Lanes`` do the work:
those of a GPU, or, in tests, any that work in an order that the events allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any, Protocol, TypeAlias

from znni.core.shapes import Shape5
from znni.network.weights import Float32
from znni.plans.primitive import Run
from znni.primitives.host_and_gpu.sub_layers import Part, SubLayers

# An array of a GPU.
DeviceArray: TypeAlias = Any

# An event of a stream: it comes when all earlier work of the stream is done.
Event: TypeAlias = Any


class Stream(Protocol):
    """A queue of work that is done in order, while other streams do theirs."""

    def record(self) -> Event:
        """Return an event that comes when all work so far is done."""

    def wait_event(self, event: Event) -> None:
        """Begin later work only when an event has come."""


class Lanes(Protocol):
    """The streams that work on a layer's pieces."""

    @property
    def uploading(self) -> Stream:
        """The stream of ``upload``."""

    @property
    def computing(self) -> Stream:
        """The stream of ``call`` and ``add``."""

    @property
    def downloading(self) -> Stream:
        """The stream of ``download``."""

    def buffer(self, shape: Shape5) -> DeviceArray:
        """Return an uninitialised array."""

    def upload(self, x: Float32, into: DeviceArray) -> None:
        """Bring an array of the host to the GPU."""

    def call(self, run: Run, x: DeviceArray, into: DeviceArray) -> None:
        """Let a primitive compute ``into`` from ``x``."""

    def add(self, partial: DeviceArray, into: DeviceArray, *, last: bool) -> None:
        """Add a partial sum; after the ``last`` one, apply the layer's activation."""

    def download(self, y: DeviceArray, into: Float32) -> None:
        """Bring an array to the host."""


def compute_sub_layers(
    lanes: Lanes,
    sub_layers: SubLayers,
    runs: Mapping[tuple[Part, Part], Run],
    x: Float32,
    y: Float32,
) -> None:
    """Ask for all pieces of a layer. The caller waits for the lanes.

    Args:
        lanes: the streams that do the work.
        sub_layers: the pieces.
        runs: functions that compute pieces by each part of the weights. If input maps are divided,
            they do not apply the activation, and only those of the last input maps add the bias.
        x: the layer's input.
        y: the layer's output.
    """
    amounts, split = sub_layers.amounts, sub_layers.split
    inputs = _places(lanes, amounts.input_buffers, sub_layers.input_shape(split.ins))
    out_shape = sub_layers.output_shape(split.outs)
    outputs = _places(lanes, amounts.output_buffers, out_shape)
    summands = _places(lanes, int(sub_layers.adds), out_shape)
    maps = sub_layers.shape.f
    brought = None
    for piece in sub_layers:
        wanted = sub_layers.input_of(piece)
        if wanted != brought:
            source, brought = next(inputs), wanted
            lanes.uploading.wait_event(source.free)
            lanes.upload(x[wanted], source.of_maps(piece.ins))
            source.full = lanes.uploading.record()
        if first := piece.ins.start == 0:
            result = next(outputs)
            lanes.computing.wait_event(result.free)
        into = result.of_maps(piece.outs)
        lanes.computing.wait_event(source.full)
        run, given = runs[piece.weights], source.of_maps(piece.ins)
        last = piece.ins.stop == maps
        if first:
            lanes.call(run, given, into)
        else:
            summand = next(summands).of_maps(piece.outs)
            lanes.call(run, given, summand)
            lanes.add(summand, into, last=last)
        source.free = lanes.computing.record()
        if last:
            lanes.downloading.wait_event(source.free)
            lanes.download(into, y[sub_layers.output_of(piece)])
            result.free = lanes.downloading.record()


class _PieceBuffer:
    """A buffer on the GPU that has one piece at a time.

    Attributes:
        array: memory for the largest piece.
        full: the event after which the piece may be read.
        free: the event after which the next piece may be written.
    """

    def __init__(self, lanes: Lanes, shape: Shape5) -> None:
        self.array = lanes.buffer(shape)
        self.full = self.free = lanes.computing.record()

    def of_maps(self, maps: Part) -> DeviceArray:
        """Return the part for a piece of so many maps; if maps are divided, so is the batch."""
        return self.array[:, : maps.length]


def _places(lanes: Lanes, count: int, shape: Shape5) -> Iterator[_PieceBuffer]:
    """Return places that take turns, forever."""
    return cycle([_PieceBuffer(lanes, shape) for _ in range(count)])
