"""Convolution by overlap-save on a GPU: Fourier transforms of tiles, products on tensor cores.

A tile of T voxels along an axis gives T - k + 1 outputs. A tile is transformed in shared memory;
the spectra of a batch of tiles lie frequency by frequency, so that a layer is a matrix product at
each; the inverse transform computes only what is valid, and applies bias and activation. Numbers
of the spectra are sums of two bfloat16 halves, multiplied by tensor cores with sums in float32:
relative errors are about 3e-6. The kernels' spectra are made once and kept between calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.network import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applying, convolved
from znni.primitives.gpu.common.activation import with_softmax
from znni.primitives.gpu.common.capability import HOPPER, capability_of
from znni.primitives.gpu.fft_tiled.number_formats import FLOAT16, HALVES, NumberFormat
from znni.primitives.gpu.fft_tiled.product_source import SHARED_BYTES, product_shape
from znni.primitives.gpu.fft_tiled.tile_batches import TileBatches
from znni.primitives.gpu.fft_tiled.tile_extents import tile_extents
from znni.primitives.gpu.fft_tiled.tiled_convolution import TiledConvolution

# The largest extents of tiles that are offered. Extents between them are used too.
TILES = (8, 12, 16, 20, 24, 28, 32)


@dataclass(frozen=True)
class GpuFftTiled:
    """Overlap-save convolution.

    Attributes:
        device: where it runs: a GPU of compute capability 9.0 (Hopper).
        tile: the largest extent of a tile along an axis, or the extents of all tiles.
        numbers: the format of the spectra.
    """

    device: Device
    tile: int | Vec3
    numbers: NumberFormat = HALVES
    version = 2

    @property
    def name(self) -> str:
        """``gpu_fft_tiled_16`` or ``gpu_fft_tiled_16_float16``, by its tile."""
        return f"gpu_fft_tiled_{self.tile}{self.numbers.suffix}"

    @property
    def accuracy(self) -> float:
        """Of the format."""
        return self.numbers.accuracy

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """None for a kernel that fills a tile, or where a smaller tile does as well.

        Nor for so many input maps, or so large a kernel, that shared memory has no room.
        """
        return convolved(layer, shape) if self._batches(layer, shape) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Operations of the codelets and the products; every pass over the spectra counted."""
        batches = applying(self._batches(layer, shape), self, layer, shape)
        memory = Memory.beside(
            shape.nbytes + batches.out.nbytes,
            workspace=batches.workspace_bytes,
            resident=batches.resident_bytes,
        )
        cost = Cost(batches.flops, batches.bytes_moved, memory, batches.efficiency)
        return with_softmax(cost, batches.layer.activation, batches.out)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels for the tile; transform the layer's kernels."""
        batches = applying(self._batches(layer, shape), self, layer, shape)
        return TiledConvolution(batches, conv_weights(batches.layer, weights))

    def _batches(self, layer: Operation, shape: Shape5) -> TileBatches | None:
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv) or layer.kernel.volume == 1:
            return None
        tile = self._extents(out.size, layer.kernel)
        product = product_shape(layer.in_features, layer.out_features, self.numbers)
        if tile is None or product is None:
            return None
        batches = TileBatches(layer, shape, out, tile, product)
        return batches if batches.taps_bytes <= SHARED_BYTES else None

    def _extents(self, out: Vec3, kernel: Vec3) -> Vec3 | None:
        if isinstance(self.tile, Vec3):
            return self.tile if (kernel + 1).within(self.tile) else None
        smaller = max((tile for tile in TILES if tile < self.tile), default=0)
        return tile_extents(self.tile, smaller, out, kernel)


# The fastest for 3^3 kernels: long rows are stored well, and a block has room for two maps.
FASTEST = Vec3(16, 20, 32)


def primitives(device: Device) -> tuple[GpuFftTiled, ...]:
    """Return a primitive for each tile and number format, if the GPU has Hopper's tensor cores."""
    if capability_of(device) != HOPPER:
        return ()
    exact = [GpuFftTiled(device, tile) for tile in TILES]
    return (*exact, *(GpuFftTiled(device, tile, FLOAT16) for tile in (*TILES, FASTEST)))
