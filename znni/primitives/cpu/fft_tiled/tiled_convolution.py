"""One layer's overlap-save convolution, ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.shapes import Vec3
from znni.machine.arena import workspace
from znni.machine.arrays import empty_aligned
from znni.network.weights import ConvWeights, Float32
from znni.primitives.cpu.common.activation import (
    activate_further,
    addresses,
    sum_output,
    vector_finish,
)
from znni.primitives.cpu.common.image_rows import image_arguments
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.phases import Phase, PhaseKernel, run_phases
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.common.vector_activation import curve
from znni.primitives.cpu.common.workers import workers
from znni.primitives.cpu.fft_tiled.frequency_product import FEW_ROWS, frequency_product
from znni.primitives.cpu.fft_tiled.kernel_transform import spectrum_shape, transform_kernels
from znni.primitives.cpu.fft_tiled.overlap_save import tile_table
from znni.primitives.cpu.fft_tiled.planes import plane_arguments
from znni.primitives.cpu.fft_tiled.tile_batches import TileBatches
from znni.primitives.cpu.fft_tiled.tile_drivers import forward_driver, inverse_driver
from znni.primitives.cpu.fft_tiled.tile_transform import (
    along_axes,
    columns,
    forward_rows,
    frequencies,
    inverse_rows,
)

# Number of shares of a pass per worker. Few are better, because neighbouring tiles share cache
# lines, but they must be enough for all workers to end together.
SHARES_PER_WORKER = 16


@dataclass(frozen=True)
class _Direction:
    """The kernels that transform tiles one way, and the voxels of a tile that they touch."""

    driver: PhaseKernel
    rows: Kernel
    columns_y: Kernel
    columns_z: Kernel
    inner: Vec3


@dataclass(frozen=True)
class Image:
    """An array and the places of its tiles.

    Attributes:
        array: values (n, f, z, y, x).
        table: table of its tiles, from ``tile_table``.
    """

    array: Float32
    table: NDArray[np.int64]


class TiledConvolution:
    """A layer ready to run: forward transforms, products and inverse transforms for each batch.

    An interruption takes effect at the end of a batch.

    Args:
        batches: tiles of the layer.
        weights: weights of the layer.
        threads: number of workers.
        resident: True to transform the kernels now and keep their spectra, False to transform them
            in each call.
        adds: True to add to another value, before the activation.
    """

    def __init__(
        self,
        batches: TileBatches,
        weights: ConvWeights,
        threads: int,
        resident: bool,
        *,
        adds: bool = False,
    ) -> None:
        self._batches = batches
        self._weight = np.ascontiguousarray(weights.weight)
        self._workers = workers(threads)
        layer, tile, numbers = batches.layer, batches.tile, batches.numbers
        tiling = batches.tiling
        self._forward = _Direction(
            forward_driver(),
            forward_rows(tile.x),
            columns(tile.y, -1, tile.y, streaming=False, ahead=False),
            columns(tile.z, -1, tile.z, streaming=True, ahead=False, numbers=numbers),
            tiling.read,
        )
        z, y, x = tiling.computed
        self._inverse = _Direction(
            inverse_driver(),
            inverse_rows(tile.x, x, curve(layer.activation), adds=adds),
            columns(tile.y, 1, y, streaming=False, ahead=False),
            columns(tile.z, 1, z, streaming=False, ahead=True, numbers=numbers),
            tiling.written,
        )
        few_rows = batches.batch < FEW_ROWS
        self._product = frequency_product(batches.out_groups, few_rows, numbers)
        self._places = tiling.places()
        self._finish = vector_finish(layer, weights)
        self._kernels = self._kernel_spectra(empty_aligned) if resident else None

    def __call__(self, x: Float32, *others: Float32) -> Float32:
        """Return the output (n, f', z, y, x) for an input (n, f, z, y, x).

        A summed convolution also takes the value to which it adds.
        """
        batches, count = self._batches, self._batches.tiling.count
        kernels = self._kernel_spectra(workspace) if self._kernels is None else self._kernels
        y = sum_output(batches.out, others)
        spectra = workspace((batches.spectra_floats,), np.float32)
        scratch = workspace((self._workers.threads, batches.scratch_floats), np.float32)
        addresses = [part.ctypes.data for part in scratch]
        source, target = self._image(x), self._image(y)
        for first in range(0, count, batches.batch):
            tiles = range(first, min(first + batches.batch, count))
            passes = [
                self._transform(self._forward, source, tiles, spectra),
                self._multiply(kernels, len(tiles), spectra),
                self._transform(self._inverse, target, tiles, spectra),
            ]
            run_phases(passes, addresses, self._workers)
        activate_further(y, batches.layer, self._workers)
        return y

    def _kernel_spectra(self, allocate: Callable[[tuple[int, ...], DTypeLike], Float32]) -> Float32:
        layer, tile, numbers = self._batches.layer, self._batches.tile, self._batches.numbers
        shape = spectrum_shape(tile, layer.out_features, layer.in_features, numbers)
        spectra = allocate(shape, np.float32)
        transform_kernels(self._weight, tile, spectra, numbers, self._workers)
        return spectra

    def _image(self, array: Float32) -> Image:
        return Image(array, tile_table(self._places, array))

    def _transform(
        self, direction: _Direction, image: Image, tiles: range, spectra: Float32
    ) -> Phase:
        """Return the phase that transforms a batch of tiles from an image, or back into one."""
        batches, tile = self._batches, self._batches.tile
        features = image.array.shape[1]
        groups = -(-features // LANES)
        share = max(1, len(tiles) * groups // (self._workers.threads * SHARES_PER_WORKER))
        return direction.driver.phase(
            -(-len(tiles) // share) * groups,
            rows=direction.rows.address,
            columns_y=direction.columns_y.address,
            columns_z=direction.columns_z.address,
            **image_arguments("array", image.array),
            maps=features,
            table=image.table[tiles.start].ctypes.data,
            tiles=len(tiles),
            tiles_per_share=share,
            **along_axes("inner", direction.inner),
            **plane_arguments(tile),
            spectra=spectra.ctypes.data,
            number=batches.numbers.floats,
            tile_stride=batches.tile_stride,
            frequency_stride=batches.frequency_stride,
            **addresses(self._finish),
        )

    def _multiply(self, kernels: Float32, rows: int, spectra: Float32) -> Phase:
        """Return the phase that multiplies a batch's spectra by the kernels', in place."""
        batches = self._batches
        count = frequencies(batches.tile)
        share = -(-count // (self._workers.threads * SHARES_PER_WORKER))
        return self._product.phase(
            -(-count // share),
            spectra=spectra.ctypes.data,
            frequency_stride=batches.frequency_stride,
            rows=rows,
            row_stride=batches.tile_stride,
            kernels=kernels.ctypes.data,
            in_features=batches.layer.in_features,
            frequencies=count,
            frequencies_per_share=share,
        )
