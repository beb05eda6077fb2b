"""Averages, maxima at other strides, and padded maxima; and averages at all offsets of a window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from znni.core.shapes import ZERO, Box, Shape5, offsets
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Operation, Pool
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applied_to, fragmented, window_pooled
from znni.primitives.cpu.common.numba_kernel import flat_view, output_view
from znni.primitives.cpu.common.rows import PIECE
from znni.primitives.cpu.common.streaming import bytes_to_write, is_streamed
from znni.primitives.cpu.common.workers import share_count, workers
from znni.primitives.cpu.window_pooling.windows import pool_planes

# Share of a core's nominal operations per second.
EFFICIENCY = 0.03

# Fewest bytes of input in a task: enough to hide the cost of handing it out.
TASK_BYTES = 512 * 1024


@dataclass(frozen=True)
class WindowPooling:
    """Maxima and averages of windows on the CPU.

    A maximum ignores samples beyond the volume. If a window has none within it, its maximum is
    minus infinity. If a window contains a NaN, its maximum is NaN.
    """

    device: Device
    name: str = "window_pooling"
    accuracy: float = 1e-6
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for any pooling but plain maxima, if its window fits."""
        return window_pooled(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: an operation for each row and sample of each window, and the traffic."""
        pool, out = applied_to(Pool, self, layer, shape)
        threads = self.device.threads
        rows = float(out.n * out.f * out.z * out.y)
        each = pool.window.z * pool.window.y * shape.x + pool.window.x * out.x
        return Cost(
            flops=rows * each,
            bytes_moved=shape.nbytes + bytes_to_write(out.nbytes),
            memory=Memory.beside(
                shape.nbytes + out.nbytes, workspace=4 * threads * _row_floats(shape, out)
            ),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, self._tasks(pool, shape, out)),
        )

    def _tasks(self, pool: Pool, shape: Shape5, out: Shape5) -> int:  # noqa: ARG002 - of fragments
        """Return the number of tasks that are handed out."""
        return share_count(self.device.threads, out.n * out.f * out.z, _most_tasks(shape))

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run; nothing needs to be prepared."""
        pool, out = applied_to(Pool, self, layer, shape)
        threads = workers(self.device.threads)
        parts = list(threads.shares(out.n * out.f * out.z, _most_tasks(shape)))
        window, stride, dilation = map(tuple, (pool.window, pool.stride, pool.dilation))
        is_max = pool.reduce == "max"

        def run(x: Float32, inside: Box | None = None) -> Float32:
            y, whole = new_output(out), Box(ZERO, shape.size)
            seen = whole.intersection(inside or whole)
            if seen is None:
                y.fill(0)
                return y
            rows = workspace((threads.threads, _row_floats(shape, out)), np.float32)
            source, target, streamed = flat_view(x), output_view(y), is_streamed(out.nbytes)
            within = (*seen.start, *seen.stop)

            def task(worker: int, part: slice) -> None:
                pool_planes(
                    *source, *target, tuple(out), shape.x, window, stride, dilation, within,
                    is_max, part.start, part.stop, rows[worker], streamed,
                )  # fmt: skip

            threads.for_each(task, parts)
            return y

        return run


@dataclass(frozen=True)
class AverageFragments(WindowPooling):
    """All fragments of an average pooling on the CPU: a pooling at each offset of its window."""

    name: str = "window_pooling_fragments"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape if all fragments have the same size."""
        return fragmented(layer, shape, "average")

    def _tasks(self, pool: Pool, shape: Shape5, out: Shape5) -> int:
        """Return the number of tasks that are handed out, at all offsets."""
        planes, places = shape.n * out.f * out.z, pool.window.volume
        return places * share_count(self.device.threads, planes, _most_tasks(out) // places)

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run; nothing needs to be prepared."""
        pool, out = applied_to(Pool, self, layer, shape)
        threads, places = workers(self.device.threads), list(offsets(pool.window))
        one = out._replace(n=shape.n)
        shares = threads.shares(one.n * one.f * one.z, _most_tasks(out) // len(places))
        tasks = list(product(range(len(places)), list(shares)))
        window, dilation = tuple(pool.window), tuple(pool.dilation)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            rows = workspace((threads.threads, _row_floats(shape, out)), np.float32)
            streamed = is_streamed(out.nbytes)

            def task(worker: int, which: tuple[int, slice]) -> None:
                place, part = which
                at = places[place]
                seen = x[:, :, at.z :, at.y :, at.x :]
                pool_planes(
                    *flat_view(seen), *output_view(y[place :: len(places)]), tuple(one),
                    seen.shape[4], window, window, dilation, (0, 0, 0, *seen.shape[2:]), False,
                    part.start, part.stop, rows[worker], streamed,
                )  # fmt: skip

            threads.for_each(task, tasks)
            return y

        return run


def _most_tasks(shape: Shape5) -> int:
    return shape.nbytes // TASK_BYTES


def _row_floats(shape: Shape5, out: Shape5) -> int:
    """Return the floats of a worker's rows: a reduced one of the input, and some of the output."""
    return shape.x + out.x * (1 + max(1, PIECE // out.x))


def primitives(device: Device) -> tuple[WindowPooling, AverageFragments]:
    """Return the pooling, and the fragments of averages."""
    return WindowPooling(device), AverageFragments(device)
