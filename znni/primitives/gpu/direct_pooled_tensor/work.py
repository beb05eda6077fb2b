"""The work of a pooled convolution on tensor cores, and its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.primitives.gpu.common.base import ConvolutionWork
from znni.primitives.gpu.common.hardware import LANES, SECTOR_FLOATS
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.direct_pooled_tensor.geometry import LANE_TAPS, MAPS, TAPS, VOXELS, Tile

# Operations of a product: tensor cores make half as many in tf32 as in float16.
PRODUCT_FLOPS = 2.0 * MAPS * TAPS * VOXELS

# Cycles of an H200's multiprocessor for a product, and to store a sector of memory.
PRODUCT_CYCLES = 2.4
SECTOR_CYCLES = 2.6


@dataclass(frozen=True)
class PooledWork(ConvolutionWork):
    """A convolution that is pooled as it is computed.

    Attributes:
        tile: what a block computes at a time.
    """

    tile: Tile
    writes_views: ClassVar[bool] = True

    @property
    def groups(self) -> int:
        """Groups of 16 output maps."""
        return -(-self.conv.out_features // MAPS)

    @property
    def products(self) -> float:
        """Products for all positions, taps and terms, in rows of whole products."""
        rows = self.out.n * self.out.z * self.out.y
        of_voxels = self.tile.window.volume * self.tile.steps * self.tile.numbers.terms
        return float(rows * -(-self.out.x // VOXELS) * self.groups * of_voxels)

    @property
    def flops(self) -> float:
        """Operations of all products."""
        return PRODUCT_FLOPS * self.products

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that tensor cores and stores sustain."""
        stores = self.out.elements / SECTOR_FLOATS * SECTOR_CYCLES
        chip = self.tile.chip
        product = max(PRODUCT_CYCLES, 2 * PRODUCT_FLOPS / chip.tensor_flops)
        return self.flops / (chip.cycle_flops * (self.products * product + stores))

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, biases and the places of taps."""
        weights = self.groups * self.tile.steps * self.tile.numbers.parts * LANES * LANE_TAPS
        return FLOAT_BYTES * (weights + self.groups * MAPS + self.tile.steps * TAPS)
