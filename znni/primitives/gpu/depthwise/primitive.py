"""Depthwise convolution on a GPU, and its transpose: each output map sees one input map.

A block goes along z and keeps the sums of all planes that see a plane of input in registers
(``depthwise.cu``). Sums are in float32. Kernels of 3^3 taps take the time of one pass over memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import Shape5, offsets
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Activation, Conv, ConvTranspose, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, convolved_with_gaps
from znni.primitives.gpu.arranged.arrangement import taps_of_phase
from znni.primitives.gpu.common.activation import (
    activate_over_maps,
    sloped_activation_source,
    with_softmax,
)
from znni.primitives.gpu.common.base import ShapedPrimitive, Work
from znni.primitives.gpu.common.hardware import (
    AMPERE_NEEDED,
    COMMON_BLOCK_SHARED,
    Chip,
    chip_of,
    processors_of,
)
from znni.primitives.gpu.common.kernels import common_code
from znni.primitives.gpu.common.map_sums import in_fours
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES, NumberFormat
from znni.primitives.gpu.common.voxels import MOST, strided
from znni.primitives.gpu.depthwise.geometry import Division, Taps, division

# Operations of a multiprocessor's schedulers in a cycle, if each instruction is a multiply-add; and
# the share of their turns in which they issue one.
FLOPS_TOGETHER = 256
ISSUED = 0.7

# Sums of the taps of one map are more exact than those over many maps.
FEW_SUMS = NumberFormat("float32", accuracy=1e-5)


@dataclass(frozen=True)
class DepthwiseWork(Work):
    """The work of a depthwise layer.

    Attributes:
        division: its division among blocks.
        chip: the GPU's chip.
    """

    layer: Conv | ConvTranspose
    division: Division
    chip: Chip
    writes_views: ClassVar[bool] = True

    @property
    def flops(self) -> float:
        """Operations of a call, if each instruction is a multiply-add."""
        return 2.0 * self.division.instructions(self.out)

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that these sustain."""
        return ISSUED * FLOPS_TOGETHER / self.chip.cycle_flops

    @property
    def map_weights(self) -> int:
        """The weights of all phases of a map, or of maps that lie together."""
        taps = self.division.tile.taps
        return taps.weights * taps.phases.z * taps.phases.y

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, biases and slopes."""
        return FLOAT_BYTES * self.out.f * (self.map_weights + 2)

    @property
    def cost(self) -> Cost:
        """The cost: the input is read once, but for the edges of tiles."""
        return with_softmax(super().cost, self.layer.activation, self.out)


@dataclass(frozen=True)
class GpuDepthwise(ShapedPrimitive[DepthwiseWork]):
    """Depthwise convolution on a GPU, with bias and activation."""

    numbers: NumberFormat = FEW_SUMS
    family: ClassVar[str] = "gpu_depthwise"
    takes_slopes: ClassVar[bool] = True

    def prepare(self, work: DepthwiseWork, weights: ConvWeights | None) -> Run:
        """Compile the kernel; order the weights as it reads them."""
        layer, shape, out, parts = work.layer, work.shape, work.out, work.division
        given, tile = conv_weights(layer, weights), parts.tile
        kernel = kernel_with_shared(
            source(layer.activation), "depthwise", tile.shared_bytes, tile.options
        )
        slope = layer.slope if given.slope is None else given.slope
        constants = [
            cupy().asarray(numbers)
            for numbers in (
                ordered_weights(layer, given.weight),
                given.bias,
                np.full(out.f, slope, np.float32),
            )
        ]
        positions = out.size.ceil_div(tile.taps.phases)
        z, y, x = parts.tiles
        counts = out.f, out.f // shape.f, *positions, x, y, z, parts.each
        blocks = parts.blocks(out)

        def run(x: Any) -> Any:
            y = new_device_output(out)
            given = *strided(x), *map(np.int32, shape.size), *constants, *strided(y)
            numbers = map(np.int32, (*counts, in_fours(y)))
            kernel((blocks,), (tile.threads,), (*given, *numbers), shared_mem=tile.shared_bytes)
            activate_over_maps(y, layer.activation)
            return y

        return run

    def work(self, layer: Operation, shape: Shape5) -> DepthwiseWork | None:
        """Decline maps made from several maps, and taps that registers do not hold."""
        chip = chip_of(self.device)
        if chip is None or not isinstance(layer, Conv | ConvTranspose):
            return None
        out = depthwise_shape(layer, shape)
        if out is None:
            return None
        limit = COMMON_BLOCK_SHARED // 2
        parts = division(Taps.of(layer), out, processors_of(self.device, chip), limit)
        if parts is None or max(parts.blocks(out), shape.y * shape.x) > MOST:
            return None
        return DepthwiseWork(shape, out, layer, parts, chip)


def depthwise_shape(layer: Conv | ConvTranspose, shape: Shape5) -> Shape5 | None:
    """Return the output's shape of a depthwise layer without dilation; None for another layer."""
    if not 1 < layer.groups == layer.in_features == shape.f or layer != layer.local:
        return None
    if isinstance(layer, Conv):
        return convolved_with_gaps(layer, shape) if layer.dilation.volume == 1 else None
    size = layer.local_size(shape.size)
    return Shape5.of(shape.n, layer.out_features, size) if min(size) > 0 else None


def kernels_by_phase(layer: Conv | ConvTranspose, weight: Float32) -> Float32:
    """Return kernels (map, phase z, y, x, z, y, x) that slide over the input."""
    taps = Taps.of(layer)
    given = weight.reshape(layer.out_features, *layer.kernel)
    made = np.zeros((layer.out_features, *taps.phases, *taps.kernel), np.float32)
    if isinstance(layer, Conv):
        made[:, 0, 0, 0] = given
        return made
    for phase in offsets(taps.phases):
        box = taps_of_phase(layer, phase)
        for at in (box.start + it for it in offsets(box.size)):
            tap = (layer.context.before - at) * layer.stride + phase + layer.padding
            made[:, *phase, *at] = given[:, *tap]
    return made


def kernels_by_step(layer: Conv | ConvTranspose, weight: Float32, taps: Taps) -> Float32:
    """Return kernels (map, phase z, y, x, live plane, plane of a step, y, x), filled with zeros."""
    kernels = kernels_by_phase(layer, weight)
    missing = taps.live * taps.stride.z - taps.kernel.z
    deep = np.pad(kernels, [(0, 0)] * 4 + [(0, missing), (0, 0), (0, 0)])
    return deep.reshape(*deep.shape[:4], taps.live, taps.stride.z, *deep.shape[5:])


def ordered_weights(layer: Conv | ConvTranspose, weight: Float32) -> Float32:
    """Return weights in the order of the kernel.

    The axes are map, phase along z and y, plane of a step, tap along y and live plane. The last
    axis has taps and phases along x, and zeros that fill whole vectors.
    """
    ordered = kernels_by_step(layer, weight, Taps.of(layer)).transpose(0, 1, 2, 5, 6, 4, 7, 3)
    rows = ordered.reshape(*ordered.shape[:6], -1)
    return np.pad(rows, [(0, 0)] * 6 + [(0, -rows.shape[-1] % 4)])


def source(activation: Activation) -> str:
    """Return the CUDA source of ``depthwise``, which is compiled with a tile's ``options``."""
    return (
        sloped_activation_source(activation)
        + blocks_source()
        + source_beside(__file__, "depthwise.cu")
    )


def blocks_source() -> str:
    """Return CUDA functions for the work of a block, and for its copies to shared memory."""
    return common_code("shared_copies.cuh") + source_beside(__file__, "blocks.cuh")


# The GPUs that have this primitive.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[GpuDepthwise, ...]:
    """Return the depthwise convolution, if the GPU has the instructions."""
    return (GpuDepthwise(device),) if chip_of(device) else ()
