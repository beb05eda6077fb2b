"""Convolution by overlap-save on a GPU: Fourier transforms of tiles, products on tensor cores.

A tile of T voxels along an axis gives T - k + 1 outputs. A tile is transformed in shared memory.
The spectra of a batch of tiles lie frequency by frequency, so that a layer is a matrix product at
each frequency. The inverse transform computes only valid voxels, and applies bias and activation.
Numbers of the spectra are pairs of bfloat16, with relative errors of about 3e-6, or float16. The
kernels' spectra are made once and kept between calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, convolved
from znni.primitives.gpu.common.base import PerItemPrimitive
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED, chip_of
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR, FLOAT16, TensorFormat
from znni.primitives.gpu.fft_tiled.geometry import tile_extents
from znni.primitives.gpu.fft_tiled.launch import Launcher
from znni.primitives.gpu.fft_tiled.product import product_shape
from znni.primitives.gpu.fft_tiled.spectrum_formats import SPECTRA
from znni.primitives.gpu.fft_tiled.transform import transform_shape
from znni.primitives.gpu.fft_tiled.work import TileBatches

# The largest extents of tiles that are offered. Extents between them are used too.
TILES = (8, 12, 16, 20, 24, 28, 32)


@dataclass(frozen=True)
class GpuFftTiled(PerItemPrimitive[TileBatches]):
    """Overlap-save convolution.

    Attributes:
        tile: the largest extent of a tile along an axis, or the extents of all tiles.
    """

    numbers: TensorFormat
    tile: int | Vec3
    version: ClassVar[int] = 2

    family: ClassVar[str] = "gpu_fft_tiled"

    @property
    def name(self) -> str:
        """The name in the catalogue: ``gpu_fft_tiled_16`` or ``gpu_fft_tiled_16_float16``."""
        return f"{self.family}_{self.tile}{self.numbers.suffix}"

    def work(self, layer: Operation, shape: Shape5) -> TileBatches | None:
        """Decline kernels that fill a tile, and layers for which a smaller tile does as well.

        So many input maps, or so large a kernel, that shared memory has no room are declined too.
        """
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv) or layer.kernel.volume == 1:
            return None
        tile, chip = self._extents(out.size, layer.kernel), chip_of(self.device)
        if tile is None or chip is None:
            return None
        spectra = SPECTRA[self.numbers]
        forward = transform_shape(tile, layer.kernel, spectra, chip, inverse=False)
        inverse = transform_shape(tile, layer.kernel, spectra, chip, inverse=True)
        if forward is None or inverse is None:
            return None
        maps = layer.in_features, layer.out_features
        product = product_shape(*maps, spectra, chip, forward.exponent_maps)
        if product is None:
            return None
        batches = TileBatches(shape, out, layer, tile, product, (forward, inverse))
        return batches if batches.taps_bytes <= chip.block_shared_bytes else None

    def prepare(self, work: TileBatches, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels for the tile; transform the layer's kernels."""
        return Launcher(work, conv_weights(work.conv, weights))

    def _extents(self, out: Vec3, kernel: Vec3) -> Vec3 | None:
        if isinstance(self.tile, Vec3):
            return self.tile if (kernel + 1).within(self.tile) else None
        smaller = max((tile for tile in TILES if tile < self.tile), default=0)
        return tile_extents(self.tile, smaller, out, kernel)


# The fastest tile for 3^3 kernels: long rows are stored well, and a block has room for two maps.
FASTEST = Vec3(16, 20, 32)


# The GPUs that have these primitives.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[GpuFftTiled, ...]:
    """Return a primitive for each tile and number format, if the GPU is an Ampere or later."""
    if chip_of(device) is None:
        return ()
    exact = (GpuFftTiled(device, BFLOAT16_PAIR, tile) for tile in TILES)
    rounded = (GpuFftTiled(device, FLOAT16, tile) for tile in (*TILES, FASTEST))
    return (*exact, *rounded)
