"""Sums, products, maxima and concatenations of values.

The output of a sum, a product or a maximum may be the memory of its first input. An input of a
concatenation that already lies in its place is not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output
from znni.machine.machine import Device
from znni.network.layers import Add, Concat, Maximum, Multiply, Operation
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to, concatenated, joined
from znni.primitives.cpu.common import rows
from znni.primitives.cpu.common.activation import (
    Finish,
    activate_further,
    row_finish,
    with_activation,
)
from znni.primitives.cpu.common.rows import RowPass
from znni.primitives.cpu.common.workers import Workers, workers


@dataclass(frozen=True)
class Concatenation:
    """The maps of several values one after the other, on the CPU."""

    device: Device
    name: str = "concatenation"
    accuracy: float = 0.0
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the joined shape for a concatenation."""
        return concatenated(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: a copy of all inputs."""
        _, out = applied_to(Concat, self, layer, shape)
        return rows.cost_of_pass(shape, out, 1.0, rows.handed_out(out, self.device.threads))

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run; nothing needs to be prepared."""
        _, out = applied_to(Concat, self, layer, shape)
        pool = workers(self.device.threads)

        def run(*inputs: Float32) -> Float32:
            y = new_output(out)
            copies = list(_copies(inputs, y))

            def task(_worker: int, part: slice) -> None:
                for first, copy in copies:
                    start, stop = part.start - first, part.stop - first
                    some = slice(max(start, 0), min(stop, copy.y.size))
                    if some.start < some.stop:
                        copy.make(some, rows.NOTHING)

            pool.for_each(task, pool.shares(y.size, rows.most_tasks(out)))
            return y

        return run


def _copies(inputs: tuple[Float32, ...], y: Float32) -> Iterator[tuple[int, RowPass]]:
    """Yield the copies of each input's images, with the number of the output's values before."""
    values = y[0, 0].size
    for n in range(len(y)):
        first_map = 0
        for x in inputs:
            place = y[n : n + 1, first_map : first_map + x.shape[1]]
            image = x[n : n + 1]
            if place.ctypes.data != image.ctypes.data:
                copy = rows.copy(place, image)
                yield (n * y.shape[1] + first_map) * values, copy
            first_map += x.shape[1]


@dataclass(frozen=True)
class Elementwise:
    """Sums, products or maxima of two values, with an activation, on the CPU."""

    device: Device
    name: str
    kind: type[Add] | type[Multiply] | type[Maximum]
    code: int
    accuracy: float = 1e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the shape of the first input, if both inputs together have ``shape``."""
        return joined(layer, shape, self.kind)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: an operation for each value, and one pass over each array."""
        join, out = applied_to(self.kind, self, layer, shape)
        threads = self.device.threads
        handed = rows.handed_out(out, threads)
        if isinstance(join, Multiply) and join.spreads:
            handed = rows.handed_out(out._replace(n=1), threads).times(out.n)
        cost = rows.cost_of_pass(shape, out, 1.0, handed, rows.piece_bytes(threads))
        return with_activation(cost, join.activation, out, threads)

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run; nothing needs to be prepared."""
        join, out = applied_to(self.kind, self, layer, shape)
        pool, finish = workers(self.device.threads), row_finish(join, out.f)

        def run(first: Float32, second: Float32) -> Float32:
            y = new_output(out)
            if isinstance(join, Multiply) and join.spreads:
                _scale(first, second, y, finish, pool)
            else:
                inputs = first, np.broadcast_to(second, out)
                RowPass(self.code, y, inputs, finish.bias, finish).run(pool)
            activate_further(y, join, pool)
            return y

        return run


def _scale(x: Float32, factors: Float32, y: Float32, finish: Finish, pool: Workers) -> None:
    """Multiply each map of each image by a factor (n, f or 1, 1, 1, 1)."""
    each = np.broadcast_to(factors[:, :, 0, 0, 0], x.shape[:2])
    for image, factor in enumerate(each):
        made, taken = y[image : image + 1], x[image : image + 1]
        RowPass(rows.SCALE, made, (taken, taken), factor.copy(), finish).run(pool)


def primitives(device: Device) -> tuple[Concatenation | Elementwise, ...]:
    """Return concatenation, addition, multiplication and maximum."""
    return (
        Concatenation(device),
        Elementwise(device, "addition", Add, rows.ADD),
        Elementwise(device, "multiplication", Multiply, rows.MULTIPLY),
        Elementwise(device, "maximum", Maximum, rows.MAXIMUM),
    )
