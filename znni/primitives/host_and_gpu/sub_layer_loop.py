"""The loop over a layer's pieces: bring a piece's input, compute it, bring its output back.

The three go on at the same time, each in order, for different pieces. What one may begin with is
said by events alone, so that the loop asks for all work at once and waits at its end. What it runs
on is behind ``Lanes``: a GPU, or, in tests, anything that does the same in any order that the
events allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any, Protocol, TypeAlias

from znni.core.shapes import Shape5
from znni.network.weights import Float32
from znni.plans.primitive import Run
from znni.primitives.host_and_gpu.sub_layers import Part, SubLayers

# Of a GPU.
DeviceArray: TypeAlias = Any

# Of a stream: that all asked of it so far is done.
Event: TypeAlias = Any


class Stream(Protocol):
    """Does what it is asked for in order, while other streams do theirs."""

    def record(self) -> Event:
        """An event: when all that was asked for so far is done."""

    def wait_event(self, event: Event) -> None:
        """Begin with what is asked for from now on when an event has come."""


class Lanes(Protocol):
    """Where a layer's pieces are worked on."""

    @property
    def uploading(self) -> Stream:
        """Does what ``upload`` asks for."""

    @property
    def computing(self) -> Stream:
        """Does what ``call`` and ``add`` ask for."""

    @property
    def downloading(self) -> Stream:
        """Does what ``download`` asks for."""

    def buffer(self, shape: Shape5) -> DeviceArray:
        """An array, whatever is in it."""

    def upload(self, x: Float32, into: DeviceArray) -> None:
        """Bring an array of the host to the GPU."""

    def call(self, run: Run, x: DeviceArray, into: DeviceArray) -> None:
        """Let a primitive compute ``into`` from ``x``."""

    def add(self, partial: DeviceArray, into: DeviceArray, *, last: bool) -> None:
        """Add a partial sum; to the ``last`` one, apply the layer's activation."""

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
        lanes: where.
        sub_layers: the pieces.
        runs: what computes each part of the weights, without activation where input maps are
            divided, and with the bias in the last part of these alone.
        x: the layer's input.
        y: its output.
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


class _Place:
    """Where one piece at a time is on the GPU.

    Attributes:
        array: for the largest piece.
        full: when what is to be read is there.
        free: when it was read, and the next may come.
    """

    def __init__(self, lanes: Lanes, shape: Shape5) -> None:
        self.array = lanes.buffer(shape)
        self.full = self.free = lanes.computing.record()

    def of_maps(self, maps: Part) -> DeviceArray:
        """The part for a piece with so many maps. Where these are divided the batch is, too."""
        return self.array[:, : maps.length]


def _places(lanes: Lanes, count: int, shape: Shape5) -> Iterator[_Place]:
    """Places that take turns."""
    return cycle([_Place(lanes, shape) for _ in range(count)])
