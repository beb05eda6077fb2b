"""Batches of a layer's tiles: sizes, memory and operations, by arithmetic alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from znni.core.shapes import Shape5, Vec3
from znni.machine.arrays import ALIGNMENT
from znni.machine.machine import Device
from znni.network.layers import Conv
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, whole_vectors
from znni.primitives.cpu.fft_tiled import frequency_product, kernel_transform, tile_transform
from znni.primitives.cpu.fft_tiled.number_formats import NumberFormat
from znni.primitives.cpu.fft_tiled.tile_transform import frequencies
from znni.primitives.cpu.fft_tiled.tiling import Tiling

# Limits on a batch of tiles. Enough tiles let kernels' spectra be read rarely, and give matrix
# products many rows: 25 rows run at 153 Gflop/s, 50 rows at 175. The batch's spectra should not
# fill the memory. So they take at most a small part of the images' bytes, or BATCH_BYTES.
BATCH_TILES = 64
BATCH_BYTES = 256 * 2**20
MOST_BATCH_BYTES = 512 * 2**20
BATCH_SHARE = 1 / 8

# Largest scratch of a tile, in bytes, that fits a worker's cache beside other data. Larger tiles
# are transformed more slowly: 24^3 voxels at some 0.8 of the rate of 18^3, and 36^3 at 0.4 to
# 0.7.
CACHE_BYTES = 2**19


@dataclass(frozen=True)
class TileBatches:
    """The work of one call.

    Attributes:
        layer: the convolution.
        shape: shape of the input.
        out: shape of the output.
        tile: extents of a tile.
        numbers: format of the spectra.
    """

    layer: Conv
    shape: Shape5
    out: Shape5
    tile: Vec3
    numbers: NumberFormat

    @cached_property
    def tiling(self) -> Tiling:
        """Tiles of all images."""
        return Tiling(self.tile, self.shape, self.layer.kernel)

    @property
    def in_groups(self) -> int:
        """Number of groups of 16 input maps."""
        return whole_vectors(self.layer.in_features) // LANES

    @property
    def out_groups(self) -> int:
        """Number of groups of 16 output maps."""
        return whole_vectors(self.layer.out_features) // LANES

    @cached_property
    def batch(self) -> int:
        """Number of tiles in a batch; batches are as equal as possible."""
        tile_bytes = frequencies(self.tile) * self.tile_stride * FLOAT_BYTES
        share = int(BATCH_SHARE * (self.shape.nbytes + self.out.nbytes))
        batch_bytes = max(BATCH_BYTES, min(MOST_BATCH_BYTES, share))
        most = max(1, min(BATCH_TILES, batch_bytes // tile_bytes))
        tiles = self.tiling.count
        return math.ceil(tiles / math.ceil(tiles / most))

    @property
    def batches(self) -> int:
        """Number of batches, each of which reads the kernels' spectra once."""
        return math.ceil(self.tiling.count / self.batch)

    # Layout of the spectra: (frequency, tile, group, float)

    @property
    def tile_stride(self) -> int:
        """Floats from one tile to the next, at one frequency."""
        return max(self.in_groups, self.out_groups) * self.numbers.floats

    @property
    def frequency_stride(self) -> int:
        """Floats from one frequency to the next.

        It is an odd multiple of a number's size, so that frequencies do not share a few cache sets.
        """
        number = self.numbers.floats
        return (self.batch * self.tile_stride // number | 1) * number

    @property
    def spectra_floats(self) -> int:
        """Floats of the spectra of a batch."""
        return frequencies(self.tile) * self.frequency_stride

    @property
    def scratch_floats(self) -> int:
        """Floats of one worker's scratch for any phase, in whole cache lines."""
        floats = max(
            tile_transform.scratch_floats(self.tile),
            frequency_product.scratch_floats(self.batch, self.layer.in_features, self.numbers),
        )
        return whole_vectors(floats)

    # Cost

    @property
    def kernel_bytes(self) -> int:
        """Bytes of the kernels' spectra."""
        shape = kernel_transform.spectrum_shape(
            self.tile, self.layer.out_features, self.layer.in_features, self.numbers
        )
        return math.prod(shape) * FLOAT_BYTES + ALIGNMENT

    def workspace_bytes(self, threads: int) -> int:
        """Return the bytes of a call beside input, output and existing kernel spectra."""
        scratch = threads * self.scratch_floats * FLOAT_BYTES
        spectra = self.spectra_floats * FLOAT_BYTES
        return spectra + scratch + self.tiling.table_bytes + 2 * ALIGNMENT

    @cached_property
    def _flops(self) -> tuple[float, float, float]:
        """Operations of forward transforms, products and inverse transforms."""
        tiling = self.tiling
        forward = tile_transform.transform_flops(self.tile, tiling.read, inverse=False)
        inverse = tile_transform.transform_flops(self.tile, tiling.written, inverse=True)
        product = frequency_product.product_flops(
            tiling.count, self.layer.in_features, self.layer.out_features, self.numbers
        )
        return (
            tiling.count * self.in_groups * forward,
            frequencies(self.tile) * product,
            tiling.count * self.out_groups * inverse,
        )

    @property
    def flops(self) -> float:
        """Operations of a call with existing kernel spectra."""
        return sum(self._flops)

    def efficiency(self, device: Device) -> float:
        """Return the average share of a processor's nominal rate that these operations sustain."""
        forward, product, inverse = self.numbers.efficiencies_on(device)
        scratch = tile_transform.scratch_floats(self.tile) * FLOAT_BYTES
        cached = min(1.0, math.cbrt(CACHE_BYTES / scratch))
        shares = zip(self._flops, (cached * forward, product, cached * inverse), strict=True)
        return self.flops / sum(flops / share for flops, share in shares)

    @property
    def kernel_flops(self) -> float:
        """Operations of the kernels' transforms."""
        kernels = self.layer.in_features * self.out_groups
        return kernels * kernel_transform.transform_flops(self.tile, self.layer.kernel)

    @property
    def bytes_moved(self) -> int:
        """Bytes of all passes: each tile is read, its spectra are written and read twice."""
        tiling = self.tiling
        voxels = tiling.count * FLOAT_BYTES
        images = voxels * (
            self.layer.in_features * tiling.read.volume
            + 2 * self.layer.out_features * tiling.written.volume
        )
        passes = 2 * (self.in_groups + self.out_groups)
        spectra = voxels * frequencies(self.tile) * passes * self.numbers.floats
        return images + spectra + self.batches * self.kernel_bytes
