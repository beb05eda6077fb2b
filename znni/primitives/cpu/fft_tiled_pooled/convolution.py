"""A convolution with its pooling by overlap-save, ready to run."""

from __future__ import annotations

import numpy as np

from znni.machine.arena import new_output, workspace
from znni.machine.arrays import empty_aligned
from znni.network.weights import ConvWeights, Float32
from znni.primitives.cpu.common.activation import activate_further, addresses, vector_finish
from znni.primitives.cpu.common.image_rows import image_arguments
from znni.primitives.cpu.common.phases import run_phases
from znni.primitives.cpu.common.simd import FLOAT_BYTES
from znni.primitives.cpu.common.vector_activation import curve
from znni.primitives.cpu.common.workers import workers
from znni.primitives.cpu.fft_tiled.kernel_transform import transform_kernels
from znni.primitives.cpu.fft_tiled.number_formats import FLOAT32
from znni.primitives.cpu.fft_tiled.overlap_save import tile_table
from znni.primitives.cpu.fft_tiled.planes import plane_arguments
from znni.primitives.cpu.fft_tiled.tile_transform import along_axes, columns, forward_rows
from znni.primitives.cpu.fft_tiled_pooled.driver import pooled_driver
from znni.primitives.cpu.fft_tiled_pooled.passes import (
    lane_columns,
    largest_row,
    pooled_row,
    product_columns,
)
from znni.primitives.cpu.fft_tiled_pooled.tiles import PooledTiles


class PooledConvolution:
    """A convolution and its pooling, ready to run tile by tile.

    Args:
        tiles: tiles of the layer.
        weights: weights of the convolution.
        threads: number of workers.
    """

    def __init__(self, tiles: PooledTiles, weights: ConvWeights, threads: int) -> None:
        self._tiles = tiles
        self._workers = workers(threads)
        self._driver = pooled_driver()
        conv, tile, tiling = tiles.layer.conv, tiles.tile, tiles.tiling
        z, y, x = tiling.computed
        self._kernels = {
            "forward_rows": forward_rows(tile.x),
            "forward_columns_y": columns(tile.y, -1, tile.y, streaming=False, ahead=False),
            "forward_columns_z": lane_columns(tile.z),
            "product_columns": product_columns(tile.z, z, conv.in_features),
            "inverse_columns_y": columns(tile.y, 1, y, streaming=False, ahead=False),
            "largest_row": largest_row(tile.x, x),
            "pooled_row": pooled_row(tiling.window.x, tiling.written.x, curve(conv.activation)),
        }
        self._spectra = empty_aligned(tiles.kernel_shape, np.float32)
        weight = np.ascontiguousarray(weights.weight)
        by_frequency = self._spectra.transpose(1, 0, 2, 3)
        transform_kernels(weight, tile, by_frequency, FLOAT32, self._workers)
        self._places = tiling.places()
        self._finish = vector_finish(conv, weights)

    def __call__(self, x: Float32) -> Float32:
        """Return the pooled output (n, f', z, y, x) for an input (n, f, z, y, x)."""
        tiles, tiling, threads = self._tiles, self._tiles.tiling, self._workers.threads
        y = new_output(tiles.out)
        scratch = workspace((threads, tiles.scratch_floats), np.float32)
        parts = np.cumsum([tiles.transform_floats, tiles.value_floats])
        scratch[:, parts[1] :] = -np.inf
        source_table = tile_table(self._places, x, tiling.window)
        target_table = tile_table(self._places, y)
        phase = self._driver.phase(
            tiling.count,
            **{name: kernel.address for name, kernel in self._kernels.items()},
            **image_arguments("source", x),
            in_features=x.shape[1],
            source_table=source_table.ctypes.data,
            **along_axes("read", tiling.read),
            **image_arguments("target", y),
            out_features=y.shape[1],
            target_table=target_table.ctypes.data,
            **along_axes("written", tiling.written),
            window_z=tiling.window.z,
            window_y=tiling.window.y,
            **plane_arguments(tiles.tile),
            kernels=self._spectra.ctypes.data,
            group_stride=self._spectra.strides[0] // FLOAT_BYTES,
            **addresses(self._finish),
            values_at=parts[0],
            largest_at=parts[1],
        )
        run_phases([phase], [part.ctypes.data for part in scratch], self._workers)
        activate_further(y, tiles.layer.conv, self._workers)
        return y
