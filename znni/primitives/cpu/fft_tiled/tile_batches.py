"""Batches of a layer's tiles: sizes, memory and operations, by arithmetic alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

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

    @cached_property
    def one_tile(self) -> TileWork:
        """Work of one tile, and of the kernels for it."""
        tiling = self.tiling
        return tile_work(self.layer, self.tile, tiling.read, tiling.written, self.numbers)

    @property
    def in_groups(self) -> int:
        """Number of groups of 16 input maps."""
        return self.one_tile.in_groups

    @property
    def out_groups(self) -> int:
        """Number of groups of 16 output maps."""
        return self.one_tile.out_groups

    @cached_property
    def batch(self) -> int:
        """Number of tiles in a batch; batches are as equal as possible."""
        tile_bytes = self.one_tile.frequencies * self.tile_stride * FLOAT_BYTES
        share = int(BATCH_SHARE * (self.shape.nbytes + self.out.nbytes))
        batch_bytes = max(BATCH_BYTES, min(MOST_BATCH_BYTES, share))
        most = max(1, min(BATCH_TILES, batch_bytes // tile_bytes))
        tiles = self.tiling.count
        return -(-tiles // -(-tiles // most))

    @cached_property
    def batches(self) -> int:
        """Number of batches, each of which reads the kernels' spectra once."""
        return -(-self.tiling.count // self.batch)

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
        return self.one_tile.frequencies * self.frequency_stride

    @property
    def scratch_floats(self) -> int:
        """Floats of one worker's scratch for any phase, in whole cache lines."""
        floats = max(
            self.one_tile.scratch_floats,
            frequency_product.scratch_floats(self.batch, self.layer.in_features, self.numbers),
        )
        return whole_vectors(floats)

    # Cost

    @property
    def kernel_bytes(self) -> int:
        """Bytes of the kernels' spectra."""
        return self.one_tile.kernel_bytes

    def workspace_bytes(self, threads: int) -> int:
        """Return the bytes of a call beside input, output and existing kernel spectra."""
        scratch = threads * self.scratch_floats * FLOAT_BYTES
        spectra = self.spectra_floats * FLOAT_BYTES
        return spectra + scratch + self.tiling.table_bytes + 2 * ALIGNMENT

    @property
    def flops(self) -> float:
        """Operations of a call with existing kernel spectra."""
        return self.tiling.count * self.one_tile.flops

    def efficiency(self, device: Device) -> float:
        """Return the average share of a processor's nominal rate that these operations sustain."""
        return self.one_tile.efficiency(self.numbers.efficiencies_on(device))

    @property
    def kernel_flops(self) -> float:
        """Operations of the kernels' transforms."""
        return self.one_tile.kernel_flops

    @property
    def bytes_moved(self) -> int:
        """Bytes of all passes: each tile is read, its spectra are written and read twice."""
        return self.tiling.count * self.one_tile.bytes_moved + self.batches * self.kernel_bytes


class TileWork(NamedTuple):
    """The work of one tile and of the kernels, which is the same for images of many sizes.

    Attributes:
        in_groups: number of groups of 16 input maps.
        out_groups: number of groups of 16 output maps.
        frequencies: number of frequencies of a tile.
        scratch_floats: floats of scratch that its transforms need.
        forward: operations of its forward transforms.
        product: operations of its products.
        inverse: operations of its inverse transforms.
        bytes_moved: bytes of all passes over its voxels and spectra.
        kernel_bytes: bytes of the kernels' spectra.
        kernel_flops: operations of the kernels' transforms.
    """

    in_groups: int
    out_groups: int
    frequencies: int
    scratch_floats: int
    forward: float
    product: float
    inverse: float
    bytes_moved: int
    kernel_bytes: int
    kernel_flops: float

    @property
    def flops(self) -> float:
        """Operations of the tile with existing kernel spectra."""
        return self.forward + self.product + self.inverse

    def efficiency(self, shares: tuple[float, float, float]) -> float:
        """Return the average share of the nominal rate that the operations sustain.

        Args:
            shares: those of forward transforms, products and inverse transforms of cached tiles.
        """
        forward, product, inverse = shares
        cached = min(1.0, math.cbrt(CACHE_BYTES / (self.scratch_floats * FLOAT_BYTES)))
        transforms = self.forward / (cached * forward) + self.inverse / (cached * inverse)
        return self.flops / (transforms + self.product / product)


# A search prices the same layers for thousands of sizes.
@lru_cache(maxsize=4096)
def tile_work(
    layer: Conv, tile: Vec3, read: Vec3, written: Vec3, numbers: NumberFormat
) -> TileWork:
    """Return the work of one tile.

    Args:
        layer: the convolution.
        tile: extents of the tile.
        read: voxels that it reads.
        written: voxels of the output that it writes.
        numbers: format of the spectra.
    """
    in_features, out_features = layer.in_features, layer.out_features
    in_groups = whole_vectors(in_features) // LANES
    out_groups = whole_vectors(out_features) // LANES
    forward = tile_transform.transform_flops(tile, read, inverse=False)
    inverse = tile_transform.transform_flops(tile, written, inverse=True)
    product = frequency_product.product_flops(1, in_features, out_features, numbers)
    spectrum = kernel_transform.spectrum_shape(tile, out_features, in_features, numbers)
    voxels = in_features * read.volume + 2 * out_features * written.volume
    passes = 2 * (in_groups + out_groups)
    values = voxels + frequencies(tile) * passes * numbers.floats
    kernels = in_features * out_groups
    return TileWork(
        in_groups,
        out_groups,
        frequencies(tile),
        tile_transform.scratch_floats(tile),
        in_groups * forward,
        frequencies(tile) * product,
        out_groups * inverse,
        values * FLOAT_BYTES,
        math.prod(spectrum) * FLOAT_BYTES + ALIGNMENT,
        kernels * kernel_transform.transform_flops(tile, layer.kernel),
    )
