"""Pointwise convolution on tensor cores of packed values, to few float32 maps.

It reads each packed voxel once, straight into the registers that products take it from. There it
may apply the norm before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import ONE, Shape5
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.packed_arrays import GROUP, PackedArray, groups_for, packed_bytes
from znni.network.layers import Activation, Conv, Normalize, Operation, PackedLayer
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.primitive import Run, convolved
from znni.primitives.gpu.common.activation import (
    activate_over_maps,
    activation_source,
    has_source,
    sloped_activation_source,
)
from znni.primitives.gpu.common.base import ConvolutionWork
from znni.primitives.gpu.common.hardware import LANES, Chip, chip_of
from znni.primitives.gpu.common.kernels import common_code, definitions, warp_mma_source
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT_BYTES, TensorFormat
from znni.primitives.gpu.common.voxels import strided as strided_array
from znni.primitives.gpu.direct_tensor.launch import ranges_source
from znni.primitives.gpu.direct_tensor.weights import scales_of
from znni.primitives.gpu.packed.base import ShapedPackedPrimitive, common_source, strided

# Sizes of a product: voxels side by side along x, and input maps. Its columns are 8 output maps.
PRODUCT_VOXELS = 16
CHUNK = 2 * GROUP
PRODUCT_FLOPS = 2 * PRODUCT_VOXELS * CHUNK * GROUP

# Products of voxels side by side that a warp has, at most; threads of a block, and blocks of a
# multiprocessor. A norm needs more registers.
MOST_UNITS = 4
THREADS = 256
BLOCKS, NORM_BLOCKS = 3, 2

# Cycles of an H200's multiprocessor for a product with its loads, for a norm of what it loads, and
# to store 16 voxels. They are estimates by the count of instructions.
PRODUCT_CYCLES = 4.0
NORM_CYCLES = 10.0
STORE_CYCLES = 6.0


@dataclass(frozen=True)
class LastLayerWork(ConvolutionWork):
    """A pointwise convolution to few maps.

    Attributes:
        chip: the chip that computes it.
        numbers: the format of packed values and weights.
        norm: the norm that is applied to the input.
    """

    chip: Chip
    numbers: TensorFormat = FLOAT16
    norm: Normalize | None = None
    writes_views: ClassVar[bool] = True

    @property
    def chunks(self) -> int:
        """Chunks of 16 input maps."""
        return -(-self.shape.f // CHUNK)

    @property
    def units(self) -> int:
        """Products of voxels side by side that a warp has."""
        return min(MOST_UNITS // self.numbers.parts, -(-self.out.x // PRODUCT_VOXELS))

    @property
    def blocks(self) -> int:
        """Blocks of a multiprocessor."""
        return NORM_BLOCKS if self.norm else BLOCKS

    @property
    def spans(self) -> int:
        """Parts of a row that a warp has one of."""
        return -(-self.out.x // (PRODUCT_VOXELS * self.units))

    @property
    def count(self) -> int:
        """Spans of all rows."""
        return self.out.n * self.out.z * self.out.y * self.spans

    @property
    def flops(self) -> float:
        """Operations of all products."""
        return float(PRODUCT_FLOPS * self.count * self.units * self._products)

    @property
    def _products(self) -> int:
        """Products of 16 voxels."""
        return self.chunks * self.numbers.terms

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that products sustain, with loads and stores."""
        of_chunk = self.numbers.terms * PRODUCT_CYCLES + (NORM_CYCLES if self.norm else 0.0)
        cycles = self.count * self.units * (self.chunks * of_chunk + STORE_CYCLES)
        return self.flops / (self.chip.cycle_flops * cycles)

    @property
    def array_bytes(self) -> int:
        """Bytes of input and output."""
        return packed_bytes(self.shape, self.numbers.parts) + self.out.nbytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, their scales and biases."""
        weights = 2 * self.numbers.parts * self.chunks * CHUNK * GROUP
        return weights + 2 * FLOAT_BYTES * GROUP


@dataclass(frozen=True)
class GpuPackedLastLayer(ShapedPackedPrimitive[LastLayerWork]):
    """Pointwise convolution of packed values to up to 8 maps that are not packed.

    It may apply the norm before it to what it loads.
    """

    family: ClassVar[str] = "gpu_packed_last_layer"
    version: ClassVar[int] = 2

    def work(self, layer: Operation, shape: Shape5) -> LastLayerWork | None:
        """Decline larger kernels and many maps."""
        if not isinstance(layer, PackedLayer) or not isinstance(layer.layer, Conv):
            return None
        conv = layer.layer
        if not layer.reads or layer.writes or layer.parts != self.numbers.parts:
            return None
        if conv.kernel != ONE:
            return None
        if layer.norm and layer.norm.activation == "softmax":
            return None
        if conv.out_features > GROUP or not has_source(conv):
            return None
        out, chip = convolved(conv, shape), chip_of(self.device)
        if out is None or chip is None:
            return None
        return LastLayerWork(shape, out, conv, chip, self.numbers, layer.norm)

    def prepare(self, work: LastLayerWork, weights: ConvWeights | None) -> Run:
        """Compile or load the kernel; lay out the weights."""
        given, maps = conv_weights(work.conv, weights), work.out.f
        kernel = compiled(source(work)).get_function("convolve")
        scales = scales_of(given.weight)
        rows = np.zeros((2, GROUP), np.float32)
        rows[:, :maps] = 1 / scales, given.bias
        scaled = given.weight * scales[:, None, None, None, None]
        constants = [
            cupy().asarray(array) for array in (weights_by_lane(scaled, self.numbers), *rows)
        ]
        blocks = cupy().cuda.Device().attributes["MultiProcessorCount"] * work.blocks
        needed = -(-work.count * LANES // THREADS)
        numbers = [np.int32(it) for it in (maps, *work.out.size, work.spans)]

        def run(x: PackedArray) -> Any:
            y = new_device_output(work.out)
            arguments = (*strided(x), *constants, *strided_array(y), *numbers, np.int64(work.count))
            if x.norm:
                arguments += x.norm
            kernel((min(blocks, needed),), (THREADS,), arguments)
            activate_over_maps(y, work.conv.activation)
            return y

        return run


def source(work: LastLayerWork) -> str:
    """Return the CUDA source of ``convolve``."""
    values = {
        "UNITS": work.units,
        "IN_GROUPS": groups_for(work.shape.f),
        "THREADS": THREADS,
        "BLOCKS": work.blocks,
        "NORMS": int(work.norm is not None),
    }
    activation: Activation = work.conv.activation
    of_norm = work.norm.activation if work.norm else "identity"
    parts = (
        definitions(values),
        common_source(work.numbers),
        ranges_source(work.numbers),
        activation_source(activation),
        sloped_activation_source(of_norm, rounded=True),
        warp_mma_source(work.numbers),
        common_code("store_if.cuh"),
        source_beside(__file__, "last_layer.cu"),
    )
    return "\n".join(parts)


def weights_by_lane(weight: Float32, numbers: TensorFormat) -> NDArray[np.float16]:
    """Return weights in the order of lanes, padded with zeros.

    Args:
        weight: (f', f, 1, 1, 1), in float16's range.
        numbers: the format of the weights.

    Returns:
        float16 (chunk of 16 input maps, part, lane, group of the chunk, map of two). A lane has one
        of 8 output maps, and two neighbouring maps of each group.
    """
    maps, given = weight.shape[:2]
    chunks = -(-given // CHUNK)
    whole = np.zeros((GROUP, chunks * CHUNK), np.float32)
    whole[:maps, :given] = weight[:, :, 0, 0, 0]
    parts = numbers.split(whole).astype(np.float16)
    split = parts.reshape(-1, GROUP, chunks, CHUNK // GROUP, LANES // GROUP, 2)
    by_lane = split.transpose(2, 0, 1, 4, 3, 5)
    return np.ascontiguousarray(by_lane).reshape(chunks, len(parts), LANES, CHUNK // GROUP, 2)
