"""The work of a tiled Fourier convolution: its tiles in batches, their memory and its cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from znni.core.shapes import Vec3
from znni.primitives.common.dft_codelets import complex_dft, inverse_real_dft, real_dft
from znni.primitives.gpu.common.base import ConvolutionWork, Pass
from znni.primitives.gpu.common.hardware import SECTOR_BYTES
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.fft_tiled.geometry import columns, frequencies, half
from znni.primitives.gpu.fft_tiled.product import ProductShape
from znni.primitives.gpu.fft_tiled.spectrum_formats import CHUNK, ROWS, SpectrumFormat
from znni.primitives.gpu.fft_tiled.transform import TransformShape

# Bytes of the spectra of a batch of tiles: a share of the images' bytes, within bounds. Each batch
# reads the kernels' spectra, so they should be small beside it. But a batch should not fill the
# memory.
BATCH_BYTES = 2**30
MOST_BATCH_BYTES = 8 * 2**30
BATCH_SHARE = 1 / 8

# Bytes of a warp in a cycle for which products wait: kernels' spectra, and spectra that they read
# again. Measured on an H100, as itself and as capability 8.0, with 8 to 320 maps
# (bench/results/gpu-chips-8.0*.json).
WARP_CYCLE_BYTES = 1.5

# Operations of a multiply-add of complex numbers.
COMPLEX_FLOPS = 8


@dataclass(frozen=True)
class TileBatches(ConvolutionWork):
    """The work of one call.

    Tiles lie side by side in the output. The last ones reach beyond the image, as if zeros followed
    it.

    Attributes:
        tile: extents of a tile, none smaller than the kernel's.
        product: how the products are cut, and the format of the spectra.
        transforms: how the transforms are cut: forward and inverse.
    """

    tile: Vec3
    product: ProductShape
    transforms: tuple[TransformShape, TransformShape]
    writes_views: ClassVar[bool] = True

    @property
    def spectra(self) -> SpectrumFormat:
        """The format of the spectra."""
        return self.product.spectra

    @property
    def valid(self) -> Vec3:
        """Voxels of the output that a tile gives."""
        return self.tile - self.conv.kernel + 1

    @cached_property
    def grid(self) -> Vec3:
        """Tiles of an image along each axis."""
        return self.out.size.ceil_div(self.valid)

    @property
    def count(self) -> int:
        """Tiles of all images."""
        return self.shape.n * self.grid.volume

    @cached_property
    def batch(self) -> int:
        """Tiles at a time: whole blocks, in batches that are as equal as they can be."""
        groups = self.left_groups if self.in_place else self.left_groups + self.out_groups
        share = int(BATCH_SHARE * (self.shape.nbytes + self.out.nbytes))
        batch_bytes = max(BATCH_BYTES, min(MOST_BATCH_BYTES, share))
        most = max(1, batch_bytes // self._tile_bytes(groups) // ROWS)
        blocks = -(-self.count // ROWS)
        return ROWS * math.ceil(blocks / math.ceil(blocks / most))

    @property
    def batches(self) -> int:
        """Batches of a call, each of which reads the kernels' spectra."""
        return math.ceil(self.count / self.batch)

    # Layout of the spectra: (block of tiles, line of frequencies, tile, group, frequency, byte)

    @property
    def in_groups(self) -> int:
        """Groups of input maps."""
        return -(-self.conv.in_features // self.spectra.group)

    @property
    def out_groups(self) -> int:
        """Groups of output maps."""
        return -(-self.conv.out_features // self.spectra.group)

    @property
    def in_place(self) -> bool:
        """True if products replace the input's spectra: they can if one block makes all maps."""
        return self.product.out_maps >= self.conv.out_features

    @property
    def left_groups(self) -> int:
        """Groups that the spectra of the input have room for."""
        return max(self.in_groups, self.out_groups if self.in_place else 0)

    @property
    def product_groups(self) -> int:
        """Groups that the products have room for."""
        return self.left_groups if self.in_place else self.out_groups

    @property
    def in_spectra_bytes(self) -> int:
        """Bytes of the spectra of a batch's input."""
        return self.batch * self._tile_bytes(self.left_groups)

    @property
    def out_spectra_bytes(self) -> int:
        """Bytes of the products of a batch, if they do not replace the input's spectra."""
        return 0 if self.in_place else self.batch * self._tile_bytes(self.out_groups)

    def _tile_bytes(self, groups: int) -> int:
        return frequencies(self.tile) * groups * SECTOR_BYTES

    @property
    def exponents_shape(self) -> tuple[int, int]:
        """Shape (tile, byte) of the exponents of a batch's tiles."""
        return self.batch, self.product.exponent_bytes

    @property
    def kernel_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the kernels' spectra: (frequency, part, chunk, output map, number)."""
        chunks = self.product.in_maps // CHUNK
        out_maps = self.spectra.product_maps(self.conv.out_features)
        return frequencies(self.tile), self.spectra.numbers.parts, chunks, out_maps, CHUNK

    @property
    def kernel_bytes(self) -> int:
        """Bytes of the kernels' spectra: 4 for a part of a number."""
        return math.prod(self.kernel_shape) * FLOAT_BYTES

    @property
    def taps_bytes(self) -> int:
        """Shared memory that the transforms of a chunk's kernels take."""
        return CHUNK * self.conv.kernel.volume * FLOAT_BYTES

    # Cost

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the spectra of a batch, and of their exponents."""
        exponents = math.prod(self.exponents_shape)
        return self.in_spectra_bytes + self.out_spectra_bytes + exponents

    @property
    def resident_bytes(self) -> int:
        """Bytes that are kept between calls: kernels' spectra, biases and scales."""
        vectors = 2 if self.spectra.scaled else 1
        return self.kernel_bytes + vectors * FLOAT_BYTES * self.conv.out_features

    @cached_property
    def _flops(self) -> tuple[float, float, float]:
        """Operations of forward transforms, of inverse ones, and of the products."""
        z, y, x = self.tile
        valid = self.valid
        lines = y * x * real_dft(z).flops + half(z) * x * complex_dft(y, -1).flops
        forward = lines + columns(self.tile) * complex_dft(x, -1).flops
        lines = columns(self.tile) * complex_dft(x, 1).first(2 * valid.x).flops
        lines += half(z) * valid.x * complex_dft(y, 1).first(2 * valid.y).flops
        inverse = lines + valid.y * valid.x * inverse_real_dft(z).first(valid.z).flops
        # Clusters take whole groups of maps, and products take multiples of maps.
        in_maps, out_maps = (self.spectra.group * n for n in (self.in_groups, self.out_groups))
        multiplied = self.product.in_maps * self.spectra.product_maps(self.conv.out_features)
        products = COMPLEX_FLOPS * self.count * frequencies(self.tile) * multiplied
        return self.count * in_maps * forward, self.count * out_maps * inverse, products

    @property
    def flops(self) -> float:
        """Operations of a call."""
        return sum(self._flops)

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that transforms and products sustain together."""
        *transforms, products = self._flops
        chip = self.product.chip
        forward, _ = self.transforms
        cycles = sum(transforms) / (self.spectra.transform_flops(self.tile) * forward.speed)
        cycles += products / self.spectra.product_flops(chip)
        awaited = self._read_again_bytes + self.batches * self.kernel_bytes
        cycles += awaited / (WARP_CYCLE_BYTES * self.product.warps)
        return self.flops / (chip.cycle_flops * cycles)

    @property
    def bytes_moved(self) -> int:
        """Bytes of all passes: tiles, and spectra, which are written and read at least twice."""
        return sum(self._pass_bytes)

    @property
    def passes(self) -> dict[str, Pass]:
        """The transforms, and the products between them."""
        forward, inverse, products = self._flops
        of_forward, of_products, of_inverse = self._pass_bytes
        on_cores = products * self.spectra.numbers.terms
        return {
            "transform_tiles": Pass(forward, of_forward),
            "multiply": Pass(on_cores, of_products, on_tensor_cores=True),
            "transform_back": Pass(inverse, of_inverse),
        }

    @property
    def _pass_bytes(self) -> tuple[int, int, int]:
        """Bytes of the forward transforms, of the products and of the inverse transforms."""
        of_group = self.count * frequencies(self.tile) * SECTOR_BYTES
        read = self.count * self.conv.in_features * self.tile.volume * FLOAT_BYTES
        there, back = of_group * self.in_groups, of_group * self.out_groups
        kernels = self.batches * self.kernel_bytes
        between = there + self._read_again_bytes + back + kernels
        return read + there, between, back + self.out.nbytes

    @property
    def _read_again_bytes(self) -> int:
        """Bytes of the input's spectra that products read more than once.

        Each block makes some of the output maps, and reads all input maps.
        """
        again = -(-self.conv.out_features // self.product.out_maps) - 1
        return again * self.count * frequencies(self.tile) * self.in_groups * SECTOR_BYTES
