"""The tiles of a pooled convolution: sizes, memory and operations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from znni.core.shapes import Shape5, Vec3
from znni.machine.arrays import ALIGNMENT
from znni.network.layers import PooledConv
from znni.primitives.common.dft_codelets import complex_dft, real_dft
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, whole_vectors
from znni.primitives.cpu.fft_tiled import kernel_transform, tile_transform
from znni.primitives.cpu.fft_tiled.number_formats import FLOAT32
from znni.primitives.cpu.fft_tiled.planes import column_blocks
from znni.primitives.cpu.fft_tiled.tile_transform import frequencies
from znni.primitives.cpu.fft_tiled.tiling import Tiling
from znni.primitives.cpu.fft_tiled_pooled.passes import block_floats

# Kernels' spectra of up to so many bytes stay in a cache that all cores share.
SHARED_CACHE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class PooledTiles:
    """The work of one call.

    Attributes:
        layer: the convolution and its pooling.
        shape: shape of the input.
        out: shape of the pooled output.
        tile: extents of a tile.
    """

    layer: PooledConv
    shape: Shape5
    out: Shape5
    tile: Vec3

    @cached_property
    def tiling(self) -> Tiling:
        """Tiles of all images."""
        return Tiling(self.tile, self.shape, self.layer.conv.kernel, self.layer.pool.window)

    @property
    def out_groups(self) -> int:
        """Number of groups of 16 output maps."""
        return whole_vectors(self.layer.conv.out_features) // LANES

    # Scratch of one worker, in floats

    @property
    def transform_floats(self) -> int:
        """Floats for the transforms: planes, followed by rows or by a block of columns.

        A last block may be read beyond the planes. The further 16 numbers allow that.
        """
        columns = self.plane_bytes // FLOAT_BYTES + 2 * LANES * (self.tile.z + LANES)
        return max(tile_transform.scratch_floats(self.tile), columns)

    @property
    def value_floats(self) -> int:
        """Floats of a tile's spectra."""
        blocks = column_blocks(self.tile)
        return blocks * block_floats(self.tile.z, self.layer.conv.in_features)

    @property
    def plane_bytes(self) -> int:
        """Bytes of a tile's planes."""
        return self.tile.z * tile_transform.plane_stride(self.tile) * FLOAT_BYTES

    @property
    def largest_floats(self) -> int:
        """Floats of a row of 16 maps."""
        return LANES * self.tile.x

    @property
    def scratch_floats(self) -> int:
        """Floats of the whole scratch."""
        return self.transform_floats + self.value_floats + self.largest_floats

    # Cost

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """Shape of the kernels' spectra: (group of output maps, frequency, input map, float)."""
        conv = self.layer.conv
        count, groups, features, floats = kernel_transform.spectrum_shape(
            self.tile, conv.out_features, conv.in_features, FLOAT32
        )
        return groups, count, features, floats

    @property
    def resident_bytes(self) -> int:
        """Bytes of the kernels' spectra and of the places of one image's tiles."""
        return prod(self.kernel_shape) * FLOAT_BYTES + ALIGNMENT + self.tiling.place_bytes

    def workspace_bytes(self, threads: int) -> int:
        """Return the bytes of a call beside its input and output."""
        scratch = threads * self.scratch_floats * FLOAT_BYTES + ALIGNMENT
        return scratch + self.tiling.table_bytes

    @cached_property
    def flops(self) -> float:
        """Operations of a call: transforms, products and pooling."""
        conv, tile, tiling = self.layer.conv, self.tile, self.tiling
        planes = whole_vectors(tile.z) // LANES
        forward = LANES * (
            planes * tiling.read.y * real_dft(tile.x).flops
            + planes * tile_transform.half(tile.x) * complex_dft(tile.y, -1).flops
            + column_blocks(tile) * complex_dft(tile.z, -1).flops
        )
        inverse = tile_transform.transform_flops(tile, tiling.wanted, inverse=True)
        products = 8 * LANES * frequencies(tile) * conv.in_features
        pooling = LANES * tiling.wanted.volume
        output = self.out_groups * float(inverse + products + pooling)
        return tiling.count * (conv.in_features * forward + output)

    @property
    def bytes_moved(self) -> int:
        """Bytes to and from memory: kernels' spectra for each tile, unless cached."""
        read = self.tiling.read.volume * self.shape.f * FLOAT_BYTES
        kernels = prod(self.kernel_shape) * FLOAT_BYTES
        if kernels > SHARED_CACHE_BYTES:
            read += kernels
        return self.tiling.count * read + 2 * self.out.nbytes
