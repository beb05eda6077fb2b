"""The work of a convolution on tensor cores whose taps are summed last, and its cost."""

from __future__ import annotations

from dataclasses import dataclass

from znni.network.layers import Conv
from znni.primitives.gpu.common.base import Work
from znni.primitives.gpu.common.hardware import Chip
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES, TensorFormat
from znni.primitives.gpu.lowered_tensor.geometry import (
    PRODUCT_VOXELS,
    UNIT_MAPS,
    Tiling,
    blocks_for,
    tiling_for,
)

# Cycles of a product that the cost model counts as traffic.
TRAFFIC_CYCLES = 75


@dataclass(frozen=True)
class LoweredWork(Work):
    """A convolution that has blocks. Its kernel applies all activations, softmax too.

    Attributes:
        conv: the convolution.
        numbers: the format of image and weights.
        chip: the chip that computes it.
    """

    conv: Conv
    numbers: TensorFormat
    chip: Chip

    @property
    def tiling(self) -> Tiling:
        """The division of its planes."""
        return tiling_for(self.conv, self.numbers, self.out.size, self.chip)

    @property
    def products(self) -> float:
        """Products of whole tiles, each of 64 voxels and 16 maps."""
        block = self.tiling.block
        y, x = self.tiling.tiles(self.out.size)
        return float(self.shape.n * self.shape.z * y * x * block.plane_products)

    @property
    def flops(self) -> float:
        """Operations of all products, as if each instruction summed over 16 maps."""
        block = self.tiling.block
        of_product = 2.0 * PRODUCT_VOXELS * UNIT_MAPS * block.columns * block.instructions
        return of_product * self.products

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that these sustain, on tensor cores."""
        cycles = self.tiling.product_cycles - TRAFFIC_CYCLES
        return self.flops / (self.chip.cycle_flops * self.products * cycles)

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights and biases."""
        weights = blocks_for(self.conv, self.numbers, self.chip)[0].weights_bytes
        return weights + FLOAT_BYTES * self.conv.out_features
