"""Depthwise convolution, and its transpose, as sums of shifted rows.

Each output map sees one input map, so few multiplications are made with each voxel. A kernel of 3^3
taps takes little more time than the output takes to reach memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.layers import Conv, ConvTranspose, Operation, SummedConv
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import BoundedByItself, Run, applying, convolution_of, convolved_with_gaps
from znni.primitives.cpu.common.activation import (
    activate_further,
    addresses,
    sum_output,
    vector_finish,
    with_activation,
    with_added,
)
from znni.primitives.cpu.common.simd import whole_vectors
from znni.primitives.cpu.common.vector_activation import curve
from znni.primitives.cpu.common.workers import share_count, workers
from znni.primitives.cpu.depthwise.row_kernel import row_kernel
from znni.primitives.cpu.depthwise.sweeps import Sweep, sweeps_of

# Share of a core's nominal operations per second.
EFFICIENCY = 0.75

# Operations that take the time of starting and storing a value: in rows without a stride, and
# where samples are picked for a stride, or interleaved by phase, for each phase along x.
VALUE_FLOPS = 12
APART_FLOPS = 50

# Fewest values in a worker's task: enough to hide the cost of handing it out.
FEWEST_VALUES = 64 * 1024


@dataclass(frozen=True)
class Depthwise(BoundedByItself):
    """Depthwise convolution on the CPU, with bias, activation and a sum."""

    device: Device
    name: str = "depthwise"
    accuracy: float = 1e-5
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape, if each output map sees one input map."""
        found = _depthwise(layer)
        if found is None or found.in_features != shape.f:
            return None
        if isinstance(found, Conv):
            return convolved_with_gaps(found, shape)
        size = found.local_size(shape.size)
        return Shape5.of(shape.n, found.out_features, size) if min(size) > 0 else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: the input is read once, and planes that several taps see are cached."""
        conv, out = self._applied_to(layer, shape)
        sweeps = sweeps_of(conv)
        positions = [sweep.positions(out) for sweep in sweeps]
        flops = sum(
            (2.0 * sweep.taps + _value_flops(sweep)) * count * whole_vectors(width)
            for sweep, (count, width) in zip(sweeps, positions, strict=True)
        )
        tables = sum(4 * out.f * sweep.taps for sweep in sweeps)
        cost = Cost(
            flops=flops,
            bytes_moved=shape.nbytes + 2 * out.nbytes,
            memory=Memory.beside(shape.nbytes + out.nbytes, workspace=0, resident=tables),
            efficiency=EFFICIENCY,
            handed=HandedOut(1, sum(len(list(self._shares(out, it))) for it in sweeps)),
        )
        cost = with_added(cost, layer, out)
        return with_activation(cost, conv.activation, out, self.device.threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels; order the weights as they read them."""
        conv, out = self._applied_to(layer, shape)
        given, adds = conv_weights(conv, weights), isinstance(layer, SummedConv)
        finish, pool = vector_finish(conv, given), workers(self.device.threads)
        sweeps = sweeps_of(conv)
        kernels = [row_kernel(it.rows, curve(conv.activation), adds) for it in sweeps]
        ordered = [it.weights(given.weight.reshape(out.f, *conv.kernel)) for it in sweeps]
        items = [(n, part) for n, it in enumerate(sweeps) for part in self._shares(out, it)]

        def run(x: Float32, *others: Float32) -> Float32:
            y = sum_output(out, others)
            read = [stride // x.itemsize for stride in x.strides]
            places = [it.places(read[2]) for it in sweeps]
            fixed = [it.arguments(x, y, out) for it in sweeps]

            def task(_worker: int, item: tuple[int, slice]) -> None:
                number, planes = item
                kernels[number](
                    weights=ordered[number].ctypes.data, places=places[number].ctypes.data,
                    first=planes.start, stop=planes.stop, repeats=out.f // shape.f,
                    **fixed[number], **addresses(finish),
                )  # fmt: skip

            pool.for_each(task, items)
            if conv.activation == "softmax":
                activate_further(y, conv, pool)
            return y

        return run

    def _applied_to(self, layer: Operation, shape: Shape5) -> tuple[Conv | ConvTranspose, Shape5]:
        """Return the convolution of a layer, and the output's shape."""
        conv, out = _depthwise(layer), self.out_shape(layer, shape)
        return applying((conv, out) if conv and out else None, self, layer, shape)

    def _shares(self, out: Shape5, sweep: Sweep) -> Iterator[slice]:
        """Yield the planes of each task."""
        planes = out.n * out.f * (out.z // sweep.step.z)
        most = max(1, out.elements // sweep.step.volume // FEWEST_VALUES)
        count = share_count(self.device.threads, planes, most)
        return ((slice(planes * i // count, planes * (i + 1) // count)) for i in range(count))


def _depthwise(layer: Operation) -> Conv | ConvTranspose | None:
    """Return the convolution of a layer if each of its output maps sees one input map."""
    found = convolution_of(layer)
    if not isinstance(found, Conv | ConvTranspose):
        return None
    if not 1 < found.groups == found.in_features or found.stride.x > 2:
        return None
    return found if found == found.local else None


def _value_flops(sweep: Sweep) -> int:
    """Return the operations that take the time of starting and storing the values of a position."""
    rows = sweep.rows
    return VALUE_FLOPS if rows.x_step == rows.x_phases == 1 else APART_FLOPS * rows.x_phases**2


def primitives(device: Device) -> tuple[Depthwise, ...]:
    """Return the depthwise convolution."""
    return (Depthwise(device),)
