"""What a convolution whose taps are summed last asks of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.network.network import Conv
from znni.primitives.gpu.lowered_tensor.geometry import (
    PRODUCT_VOXELS,
    UNIT_MAPS,
    Tiling,
    blocks_for,
    tiling_for,
)
from znni.primitives.gpu.lowered_tensor.number_formats import NumberFormat

# Of a multiprocessor of an H200: operations at its nominal float32 rate in a cycle; and of a
# product's cycles those that the model of costs adds as traffic.
CYCLE_FLOPS = 298
TRAFFIC_CYCLES = 75

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Work:
    """A layer's.

    Attributes:
        conv: the layer, which there are blocks for.
        numbers: the format of image and weights.
        shape: of the input.
        out: shape of the output.
    """

    conv: Conv
    numbers: NumberFormat
    shape: Shape5
    out: Shape5

    @property
    def tiling(self) -> Tiling:
        """Of its planes."""
        return tiling_for(self.conv, self.numbers, self.out.size)

    @property
    def products(self) -> float:
        """Of 64 voxels and 16 maps, of whole tiles."""
        block = self.tiling.block
        y, x = self.tiling.tiles(self.out.size)
        return float(self.shape.n * self.shape.z * y * x * block.plane_products)

    @property
    def flops(self) -> float:
        """Of these."""
        block = self.tiling.block
        return (
            2.0 * PRODUCT_VOXELS * UNIT_MAPS * block.columns * block.numbers.terms * self.products
        )

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that they sustain, on tensor cores."""
        cycles = self.tiling.product_cycles - TRAFFIC_CYCLES
        return self.flops / (CYCLE_FLOPS * self.products * cycles)

    @property
    def bytes_moved(self) -> int:
        """Input and output."""
        return self.shape.nbytes + self.out.nbytes

    @property
    def resident_bytes(self) -> int:
        """Of weights and biases."""
        return (
            blocks_for(self.conv, self.numbers)[0].weights_bytes
            + FLOAT_BYTES * self.conv.out_features
        )
