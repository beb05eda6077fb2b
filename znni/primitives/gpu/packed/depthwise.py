"""Depthwise convolution of packed values, and its transpose.

As it stores, it may add up each map for a norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import ZERO, Shape5, Vec3
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.packed_arrays import (
    GROUP,
    RECORD_BYTES,
    SUMS_BYTES,
    PackedArray,
    groups_for,
    in_whole_groups,
    packed_bytes,
)
from znni.network.layers import (
    Activation,
    Conv,
    ConvTranspose,
    Operation,
    PackedLayer,
)
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.primitive import Run
from znni.primitives.gpu.common.activation import sloped_activation_source
from znni.primitives.gpu.common.hardware import COMMON_BLOCK_SHARED, chip_of, processors_of
from znni.primitives.gpu.common.kernels import definitions
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES, TensorFormat
from znni.primitives.gpu.common.voxels import MOST
from znni.primitives.gpu.depthwise.geometry import Taps, division
from znni.primitives.gpu.depthwise.primitive import (
    DepthwiseWork,
    blocks_source,
    depthwise_shape,
    kernels_by_step,
)
from znni.primitives.gpu.direct_tensor.launch import bounds_of, ranges_source
from znni.primitives.gpu.packed.base import (
    ShapedPackedPrimitive,
    common_source,
    into_output,
    strided,
)
from znni.primitives.gpu.packed.pointwise import largest_bound


@dataclass(frozen=True)
class PackedDepthwiseWork(DepthwiseWork):
    """The work of a depthwise layer of packed values.

    Attributes:
        sums: whether it adds up its maps.
        left_out: the last planes, rows and columns of the output that it does not add up.
    """

    sums: bool
    left_out: Vec3

    @property
    def array_bytes(self) -> int:
        """Bytes of input and output."""
        parts = self.division.tile.taps.parts
        return sum(packed_bytes(it, parts) for it in (self.shape, self.out))

    @property
    def bytes_moved(self) -> float:
        """Bytes of input and output, and of the sums."""
        return self.array_bytes + self.sums_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, biases, slopes, records and sums."""
        of_group = FLOAT_BYTES * (self.map_weights + 2 * GROUP) + RECORD_BYTES
        return groups_for(self.out.f) * of_group + self.sums_bytes

    @property
    def sums_shape(self) -> tuple[int, ...]:
        """The shape of the sums: (n, part, map, sum or sum of squares)."""
        return self.out.n, self.division.parts, in_whole_groups(self.out.f), 2

    @property
    def sums_bytes(self) -> int:
        """The bytes of the sums."""
        if not self.sums:
            return 0
        return SUMS_BYTES * self.out.n * self.division.parts * in_whole_groups(self.out.f)


@dataclass(frozen=True)
class GpuPackedDepthwise(ShapedPackedPrimitive[PackedDepthwiseWork]):
    """Depthwise convolution of packed values."""

    family: ClassVar[str] = "gpu_packed_depthwise"
    version: ClassVar[int] = 2

    def prepare(self, work: PackedDepthwiseWork, weights: ConvWeights | None) -> Run:
        """Compile the kernel; order the weights as it reads them."""
        conv, out, tile = work.layer, work.out, work.division.tile
        given = conv_weights(conv, weights)
        kernel = kernel_with_shared(
            source(conv.activation, self.numbers, sums=work.sums, left_out=work.left_out),
            "depthwise",
            tile.shared_bytes,
            tile.options,
        )
        rows = np.zeros((2, in_whole_groups(out.f)), np.float32)
        rows[0, : out.f], rows[1] = given.bias, conv.slope
        constants = [
            cupy().asarray(it)
            for it in (ordered_weights(conv, given.weight, self.numbers.parts), *rows)
        ]
        bounds = bounds_of(conv.activation, given)
        most = largest_bound(
            conv.activation, float(bounds.of_input), float(bounds.least), abs(conv.slope)
        )
        sums = cupy().empty(work.sums_shape, np.float64) if work.sums else None
        added = () if sums is None else (sums, *map(np.int32, out.size - work.left_out))
        z, y, x = work.division.tiles
        positions = out.size.ceil_div(tile.taps.phases)
        counts = groups_for(out.f), *positions, x, y, z, work.division.each
        blocks = work.division.blocks(out)

        def run(x: PackedArray) -> Any:
            y = new_device_output(out)._replace(sums=sums)
            taken = *strided(x), *map(np.int32, work.shape.size), *constants, *most, *strided(y)
            given = *taken, *map(np.int32, counts), *added
            kernel((blocks,), (tile.threads,), given, shared_mem=tile.shared_bytes)
            return y

        return into_output(out, self.numbers.parts, run)

    def work(self, layer: Operation, shape: Shape5) -> PackedDepthwiseWork | None:
        """Decline maps made from other maps, affine maps, and what is left to other layers."""
        chip = chip_of(self.device)
        if chip is None or not isinstance(layer, PackedLayer):
            return None
        conv = layer.layer
        if not isinstance(conv, Conv | ConvTranspose) or conv.activation in ("softmax", "prelu"):
            return None
        if not (layer.reads and layer.writes) or layer.parts != self.numbers.parts:
            return None
        if layer.norm or layer.leaves or conv.out_features != conv.in_features:
            return None
        if conv.kernel.volume == conv.stride.volume == 1 and not layer.sums:  # an affine map
            return None
        out = depthwise_shape(conv, shape)
        if out is None:
            return None
        taps, processors = Taps.of(conv, self.numbers.parts), processors_of(self.device, chip)
        parts = division(taps, out, processors, COMMON_BLOCK_SHARED // 2)
        if parts is None or max(parts.blocks(out), shape.y * shape.x) > MOST:
            return None
        return PackedDepthwiseWork(shape, out, conv, parts, chip, layer.sums, layer.left_out)


def ordered_weights(layer: Conv | ConvTranspose, weight: Float32, parts: int) -> Float32:
    """Return weights in the order of the kernel.

    The axes are group, phase along z and y, plane of a step and tap along x. Then come tap along y,
    live plane, phase along x, and map of the group.
    """
    kernels = kernels_by_step(layer, weight, Taps.of(layer, parts))
    whole = np.zeros((in_whole_groups(len(kernels)), *kernels.shape[1:]), np.float32)
    whole[: len(kernels)] = kernels
    by_group = whole.reshape(-1, GROUP, *kernels.shape[1:])
    # (group, map, phase z, y, x, live plane, plane of the step, tap y, x)
    return np.ascontiguousarray(by_group.transpose(0, 2, 3, 6, 8, 7, 5, 4, 1))


def source(
    activation: Activation, numbers: TensorFormat, *, sums: bool, left_out: Vec3 = ZERO
) -> str:
    """Return the CUDA source of ``depthwise``, which is compiled with a tile's ``options``."""
    return (
        definitions({"SUMS": int(sums), "LEAVES_OUT": int(left_out != ZERO)})
        + common_source(numbers)
        + ranges_source(numbers)
        + sloped_activation_source(activation, rounded=True)
        + blocks_source()
        + source_beside(__file__, "depthwise.cu")
    )
