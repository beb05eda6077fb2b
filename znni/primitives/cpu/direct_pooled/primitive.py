"""Direct convolution of a first layer with its max-pooling, for small kernels.

It is like ``fft_tiled_pooled``, for kernels with so few taps that a transform is more work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from znni.core.option_types import ACCURACIES
from znni.core.shapes import Shape5
from znni.machine.arena import new_output, workspace
from znni.machine.arrays import ALIGNMENT
from znni.machine.machine import Device
from znni.network.layers import Operation, PooledConv
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applying
from znni.primitives.cpu.common.activation import (
    activate_further,
    addresses,
    vector_finish,
    with_activation,
)
from znni.primitives.cpu.common.first_layer import pooled_first_layer
from znni.primitives.cpu.common.image_rows import image_arguments
from znni.primitives.cpu.common.phases import run_phases
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, whole_vectors
from znni.primitives.cpu.common.vector_activation import curve
from znni.primitives.cpu.common.workers import workers
from znni.primitives.cpu.direct_pooled.pooled_taps import SCRATCH_FLOATS, pooled_taps

# Largest number of multiply-adds for a pooled voxel and an input map, all unrolled in the kernel.
# The second limit is on the sums that they add to, which should stay in registers.
MOST_PRODUCTS = 512
MOST_SUMS = 24

# Share of a core's nominal operations per second.
EFFICIENCY = 0.62


@dataclass(frozen=True)
class DirectPooled:
    """Direct convolution and plain max-pooling in one primitive."""

    device: Device
    name: str = "direct_pooled"
    accuracy: float = ACCURACIES["float32"]
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for a convolution of few taps with its pooling."""
        found = self._found(layer, shape)
        return found and found[1]

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: a multiply-add for each tap of each voxel, and the memory traffic."""
        pair, out = applying(self._found(layer, shape), self, layer, shape)
        taps = pair.conv.in_features * pair.conv.kernel.volume
        maps = whole_vectors(out.f)
        scratch = self.device.threads * SCRATCH_FLOATS * FLOAT_BYTES
        cost = Cost(
            flops=2.0 * out.n * out.size.volume * pair.pool.window.volume * maps * taps,
            bytes_moved=shape.nbytes + 2 * out.nbytes,
            memory=Memory.beside(
                shape.nbytes + out.nbytes,
                workspace=scratch + ALIGNMENT,
                resident=maps * (taps + 1) * FLOAT_BYTES,
            ),
            efficiency=EFFICIENCY,
            handed=HandedOut(1),
        )
        activation, threads = pair.conv.activation, self.device.threads
        return with_activation(cost, activation, out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare the layer, with the weights in the order in which the kernel reads them."""
        pair, out = applying(self._found(layer, shape), self, layer, shape)
        given = conv_weights(pair.conv, weights)
        kernel = pooled_taps(pair.conv.kernel, pair.pool.window, curve(pair.conv.activation))
        pool = workers(self.device.threads)
        lanes = _by_lanes(given.weight)
        finish = vector_finish(pair.conv, given)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            pooled = workspace((pool.threads, SCRATCH_FLOATS), np.float32)
            phase = kernel.phase(
                out.n * out.z * out.y,
                **image_arguments("source", x),
                in_features=shape.f,
                **image_arguments("target", y),
                out_features=out.f,
                out_z=out.z,
                out_y=out.y,
                out_x=out.x,
                weights=lanes.ctypes.data,
                **addresses(finish),
            )
            run_phases([phase], [part.ctypes.data for part in pooled], pool)
            activate_further(y, pair.conv, pool)
            return y

        return run

    def _found(self, layer: Operation, shape: Shape5) -> tuple[PooledConv, Shape5] | None:
        found = pooled_first_layer(layer, shape)
        if found is None:
            return None
        pair, _ = found
        sums = pair.pool.window.volume
        written_out = sums <= MOST_SUMS and sums * pair.conv.kernel.volume <= MOST_PRODUCTS
        return found if written_out else None


def primitives(device: Device) -> tuple[DirectPooled, ...]:
    """Return the direct convolution with its pooling."""
    return (DirectPooled(device),)


def _by_lanes(weight: Float32) -> Float32:
    """Return weights as (group of 16 output maps, input map, tap, lane), padded with zero maps."""
    out_features, in_features = weight.shape[:2]
    maps = np.zeros((whole_vectors(out_features), *weight.shape[1:]), np.float32)
    maps[:out_features] = weight
    by_group = maps.reshape(-1, LANES, in_features, weight[0, 0].size)
    return np.ascontiguousarray(by_group.transpose(0, 2, 3, 1))
