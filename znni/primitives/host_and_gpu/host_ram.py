"""Convolution on a GPU of tensors that stay in the host's memory.

This is ZNNi's "GPU + host RAM" layer (Zlateski, Lee and Seung, 2016, section VII-A). A layer is
divided into pieces that are small enough for the GPU. Each piece is brought there, computed by one
of the GPU's own primitives, and brought back; the three steps run side by side for different pieces
(``sub_layer_loop``). So a layer takes as long as the slowest step, which is the link for all but
the largest kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import new_output
from znni.machine.cuda import device_errors
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.nominal_time import nominal_time
from znni.plans.primitive import Primitive, Run, applying, by_values, convolved
from znni.primitives.host_and_gpu.splits import splits
from znni.primitives.host_and_gpu.sub_layer_loop import compute_sub_layers
from znni.primitives.host_and_gpu.sub_layers import Part, SubLayers

GIB = 2**30

# GiB of the GPU that the pieces of a call may take, with the primitive's workspace. From 1 GiB on,
# the link sets the pace of most layers. More than 4 GiB help by a few percent, and only if images
# are huge.
BUDGETS = (0.25, 1, 4, 16)


class DividedLayer(NamedTuple):
    """The way in which a layer is divided.

    Attributes:
        sub_layers: the pieces.
        costs: pairs of a cost of one piece by a part of the weights, and how many parts have it.
    """

    sub_layers: SubLayers
    costs: tuple[tuple[int, Cost], ...]

    @property
    def working(self) -> int:
        """Bytes on the GPU within a call."""
        workspace = max(cost.memory.workspace for _, cost in self.costs)
        return self.sub_layers.amounts.buffer_bytes + workspace

    @property
    def resident(self) -> int:
        """Bytes on the GPU between calls."""
        return sum(times * cost.memory.resident for times, cost in self.costs)


@dataclass(frozen=True)
class HostRam:
    """One of a GPU's primitives, for tensors of the host.

    Attributes:
        device: the host, which has input and output.
        gpu: the GPU that computes pieces.
        base: the GPU's primitive that computes them.
        gib: GiB of the GPU that pieces may take.
    """

    device: Device
    gpu: Device
    base: Primitive
    gib: float

    @property
    def name(self) -> str:
        """The name in the catalogue, such as ``host_ram_4GiB_gpu_fft_tiled_16``."""
        return f"host_ram_{self.gib:g}GiB_{self.base.name}"

    @property
    def accuracy(self) -> float:
        """The relative error that the GPU's primitive promises."""
        return self.base.accuracy

    @property
    def version(self) -> int:
        """The version of the GPU's primitive."""
        return self.base.version

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the shape of the output; None if no pieces fit the primitive and the budget."""
        found = _divided(self, layer, shape)
        return found and found.sub_layers.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: input and output on the host, pieces and their primitive on the GPU."""
        chosen = self._applicable(layer, shape)
        parts, amounts = chosen.sub_layers, chosen.sub_layers.amounts
        computing = sum(times * nominal_time(self.base, cost) for times, cost in chosen.costs)
        return Cost(
            flops=amounts.places * sum(times * cost.flops for times, cost in chosen.costs),
            bytes_moved=amounts.uploaded + amounts.downloaded,
            memory=Memory(
                resident=0,
                working=shape.nbytes + parts.out.nbytes,
                workspace=0,
                gpu_resident=chosen.resident,
                gpu_working=chosen.working,
            ),
            efficiency=1.0,
            seconds=parts.seconds(self.gpu.link, amounts.places * computing),
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Build the GPU's primitive for each part of the weights.

        Raises:
            RunFailed: the GPU has too little memory, or fails in another way.
        """
        from znni.primitives.host_and_gpu.cuda_lanes import CudaLanes

        parts = self._applicable(layer, shape).sub_layers
        with device_errors(self.gpu.name):
            lanes = CudaLanes(parts.layer.activation)
            with lanes.computing:
                runs = build_parts(self.base, parts, conv_weights(parts.layer, weights))
            lanes.wait()

        def run(x: Float32) -> Float32:
            y = new_output(parts.out)
            with device_errors(self.gpu.name), lanes.device:
                try:
                    compute_sub_layers(lanes, parts, runs, x, y)
                finally:  # no array may be freed while streams still use it
                    lanes.wait()
            return y

        return run

    def _applicable(self, layer: Operation, shape: Shape5) -> DividedLayer:
        return applying(_divided(self, layer, shape), self, layer, shape)


def build_parts(
    base: Primitive, parts: SubLayers, weights: ConvWeights
) -> dict[tuple[Part, Part], Run]:
    """Build what computes pieces by each part of the weights; the last input maps add the bias."""
    runs = {}
    for (outs, ins), conv in parts.blocks.items():
        weight = np.ascontiguousarray(weights.weight[outs.slice, ins.slice])
        bias = weights.bias[outs.slice]
        if ins.stop < parts.shape.f:
            bias = np.zeros_like(bias)
        shape = parts.input_shape(ins.length)
        runs[outs, ins] = base.build(conv, shape, ConvWeights(weight, bias))
    return runs


@lru_cache(maxsize=2**16)
def _divided(primitive: HostRam, layer: Operation, shape: Shape5) -> DividedLayer | None:
    """Return the split with the least traffic that fits the GPU's primitive and the budget."""
    base, budget = primitive.base, int(primitive.gib * GIB)
    out = convolved(layer, shape)
    if out is None or not isinstance(layer, Conv):
        return None
    if base.out_shape(layer, shape._replace(n=1)) is None:
        return None
    for split in splits(layer, shape, out, budget):
        parts = SubLayers(layer, shape, out, split)
        costs = _costs(base, parts)
        if costs and (chosen := DividedLayer(parts, costs)).working <= budget:
            return chosen
    return None


def _costs(base: Primitive, parts: SubLayers) -> tuple[tuple[int, Cost], ...] | None:
    """Return the cost of a piece by each part of the weights, or None if the base declines one."""
    costs = []
    for conv, times in parts.block_counts.items():
        shape = parts.input_shape(conv.in_features)
        if base.out_shape(conv, shape) != parts.output_shape(conv.out_features):
            return None
        costs.append((times, base.cost(conv, shape)))
    return tuple(costs)


def primitives(host: Device, gpu: Device, on_gpu: Mapping[str, Primitive]) -> tuple[HostRam, ...]:
    """Return each of the GPU's primitives, within each budget. The host has no packed values."""
    _, bases = by_values(on_gpu.values())
    return tuple(HostRam(host, gpu, base, gib) for base in bases for gib in BUDGETS)
