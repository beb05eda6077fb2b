"""Upsampling by whole factors: nearest and trilinear, as PyTorch does without ``align_corners``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from znni.core.shapes import ZERO, Box, Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Operation, Upsample
from znni.network.weights import ConvWeights, Float32
from znni.plans.cost import Cost, HandedOut
from znni.plans.primitive import Run, applied_to, upsampled
from znni.primitives.cpu.common.numba_kernel import flat_view, output_view
from znni.primitives.cpu.common.rows import PIECE, cost_of_pass, most_tasks
from znni.primitives.cpu.common.streaming import is_streamed
from znni.primitives.cpu.common.workers import share_count, workers
from znni.primitives.cpu.upsampling.interpolation import (
    interpolate_planes,
    neighbours,
    repeat_planes,
)

# Operations for a value of the output: of the rows that are mixed, and along a row.
FLOPS: dict[str, float] = {"nearest": 1, "trilinear": 8}


@dataclass(frozen=True)
class Upsampling:
    """Upsampling on the CPU.

    Attributes:
        device: the processor that runs it.
        mode: the kind of upsampling that it does.
        accuracy: the relative error that it promises.
    """

    device: Device
    mode: Literal["nearest", "trilinear"]
    accuracy: float
    version = 1

    @property
    def name(self) -> str:
        """``upsampling_nearest`` or ``upsampling_trilinear``."""
        return f"upsampling_{self.mode}"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for upsampling of this kind."""
        return upsampled(layer, shape, self.mode)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: a few operations for each value, and one pass over each array."""
        upsample, out = applied_to(Upsample, self, layer, shape)
        threads = self.device.threads
        handed = HandedOut(1, share_count(threads, out.n * out.f * out.z, most_tasks(out)))
        workspace_bytes = 4 * threads * _row_floats(upsample, shape)
        return cost_of_pass(shape, out, FLOPS[self.mode], handed, workspace_bytes)

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Return the run, with the neighbours of each sample and their shares."""
        upsample, out = applied_to(Upsample, self, layer, shape)
        pool, factor = workers(self.device.threads), upsample.factor
        parts = list(pool.shares(out.n * out.f * out.z, most_tasks(out)))

        def run(x: Float32, inside: Box | None = None) -> Float32:
            y, whole = new_output(out), Box(ZERO, shape.size)
            seen = whole.intersection(inside or whole)
            if seen is None:
                y.fill(0)
                return y
            rows = workspace((pool.threads, _row_floats(upsample, shape)), np.float32)
            source, target, streamed = flat_view(x), output_view(y), is_streamed(out.nbytes)
            axes = zip(factor, shape.size, seen.start, seen.stop, strict=True)
            along_z, along_y, _ = (neighbours(*axis) for axis in axes)
            along_x = factor.x, seen.start.x, seen.stop.x

            def task(worker: int, part: slice) -> None:
                span = part.start, part.stop
                if self.mode == "nearest":
                    repeat_planes(
                        *source, *target, tuple(out), tuple(factor), *span, rows[worker], streamed
                    )
                else:
                    interpolate_planes(
                        *source, *target, tuple(out), shape.x, *span, along_z, along_y, *along_x,
                        rows[worker], streamed,
                    )  # fmt: skip

            pool.for_each(task, parts)
            return y

        return run


def _row_floats(layer: Upsample, shape: Shape5) -> int:
    """Return the floats of a worker's rows: a mixed one of the input, and some of the output."""
    row = shape.x * layer.factor.x
    return shape.x + row * max(1, PIECE // row)


def primitives(device: Device) -> tuple[Upsampling, ...]:
    """Return both kinds of upsampling."""
    return (
        Upsampling(device, "nearest", accuracy=0.0),
        Upsampling(device, "trilinear", accuracy=1e-6),
    )
