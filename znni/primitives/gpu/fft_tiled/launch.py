"""Launching an overlap-save convolution on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared
from znni.machine.device_arena import device_workspace, for_now, new_device_output
from znni.network.weights import ConvWeights
from znni.primitives.gpu.common.activation import activate_over_maps
from znni.primitives.gpu.common.kernels import strides_in_elements
from znni.primitives.gpu.fft_tiled.geometry import frequencies, mean_frequency, roots
from znni.primitives.gpu.fft_tiled.ranges import scales_of_kernels
from znni.primitives.gpu.fft_tiled.work import TileBatches

TRANSFORM_KERNELS_THREADS = 256


class Launcher:
    """Runs a layer: forward transforms, products and inverse transforms, batch after batch.

    Args:
        batches: the layer's tiles.
        weights: the layer's weights, whose spectra are made now and kept.
    """

    def __init__(self, batches: TileBatches, weights: ConvWeights) -> None:
        conv, product = batches.conv, batches.product
        forward, inverse = batches.transforms
        self._batches, self._product = batches, product
        self._there, self._back = forward, inverse
        self._forward = kernel_with_shared(
            forward.source(conv.activation), "forward_transform", forward.shared_bytes
        )
        self._inverse = kernel_with_shared(
            inverse.source(conv.activation), "inverse_transform", inverse.shared_bytes
        )
        self._multiply = kernel_with_shared(
            product.source(), "multiply_spectra", product.shared_bytes
        )
        self._bias = cupy().asarray(weights.bias, np.float32)
        weight = np.asarray(weights.weight, np.float32)
        if batches.spectra.scaled:
            scales = scales_of_kernels(weight, batches.tile)
            weight = weight * scales[:, None, None, None, None]
            self._scales = cupy().asarray(1 / scales)
        else:
            self._scales = None
        self._kernels = self._kernel_spectra(weight)
        self._processors = cupy().cuda.Device().attributes["MultiProcessorCount"]

    def __call__(self, x: Any) -> Any:
        """Return the output (n, f', z, y, x) for an input (n, f, z, y, x)."""
        batches = self._batches
        y = new_device_output(batches.out)
        spectra = device_workspace((batches.in_spectra_bytes,), np.uint8)
        exponents = (
            device_workspace(batches.exponents_shape, np.int8) if batches.spectra.scaled else None
        )
        products = (
            spectra
            if batches.in_place
            else device_workspace((batches.out_spectra_bytes,), np.uint8)
        )
        for first in range(0, batches.count, batches.batch):
            tiles = min(batches.batch, batches.count - first)
            self.transform_tiles(x, spectra, exponents, first, tiles)
            self.multiply(spectra, exponents, products, tiles)
            self.transform_back(products, exponents, y, first, tiles)
        activate_over_maps(y, batches.conv.activation)
        return y

    def transform_tiles(self, x: Any, spectra: Any, exponents: Any, first: int, tiles: int) -> None:
        """Transform some tiles of the input; note their exponents, if they have any."""
        batches, transform = self._batches, self._there
        maps = batches.conv.in_features
        self._forward(
            (transform.grid(tiles, batches.in_groups),),
            (transform.threads,),
            (
                x,
                *strides_in_elements(x),
                np.int32(maps),
                *map(np.int32, batches.shape.size),
                *map(np.int32, batches.grid),
                np.int64(first),
                np.int32(tiles),
                spectra,
                np.int32(batches.left_groups),
                *self._if_scaled(exponents, np.int32(batches.exponents_shape[1])),
            ),
            shared_mem=transform.shared_bytes,
        )

    def multiply(self, spectra: Any, exponents: Any, products: Any, tiles: int) -> None:
        """Multiply the spectra of some tiles by those of the kernels."""
        batches, product = self._batches, self._product
        count = frequencies(batches.tile)
        out_maps = batches.kernel_shape[3]
        self._multiply(
            (min(count, self._processors), -(-out_maps // product.out_maps)),
            (product.threads,),
            (
                spectra,
                np.int32(batches.left_groups),
                np.int32(batches.in_groups),
                self._kernels,
                np.int32(out_maps),
                products,
                np.int32(batches.product_groups),
                np.int32(batches.out_groups),
                np.int32(tiles),
                np.int32(count),
                *self._if_scaled(exponents, np.int32(mean_frequency(batches.tile))),
            ),
            shared_mem=product.shared_bytes,
        )

    def transform_back(self, products: Any, exponents: Any, y: Any, first: int, tiles: int) -> None:
        """Transform the products of some tiles to the output."""
        batches, transform, product = self._batches, self._back, self._product
        maps = batches.conv.out_features
        self._inverse(
            (transform.grid(tiles, batches.out_groups),),
            (transform.threads,),
            (
                products,
                np.int32(batches.product_groups),
                y,
                *strides_in_elements(y),
                np.int32(maps),
                *map(np.int32, batches.out.size),
                *map(np.int32, batches.grid),
                np.int64(first),
                np.int32(tiles),
                self._bias,
                *self._if_scaled(
                    self._scales,
                    exponents,
                    np.int32(batches.in_groups * (batches.spectra.group // product.exponent_maps)),
                    np.int32(batches.exponents_shape[1]),
                ),
            ),
            shared_mem=transform.shared_bytes,
        )

    def _if_scaled(self, *arguments: Any) -> tuple[Any, ...]:
        """Return arguments of kernels for formats in which tiles and kernels have own ranges."""
        return arguments if self._batches.spectra.scaled else ()

    def _kernel_spectra(self, weight: Any) -> Any:
        batches = self._batches
        conv = batches.conv
        spectra = cupy().empty(batches.kernel_shape, np.uint32)
        chunks, out_maps = batches.kernel_shape[2:4]
        taps_bytes = batches.taps_bytes
        transform = kernel_with_shared(
            self._there.kernel_spectra_source(), "transform_kernels", taps_bytes
        )
        with for_now():
            taps = cupy().asarray(np.ascontiguousarray(weight))
            phases = cupy().asarray(roots(batches.tile, conv.kernel))
        transform(
            (chunks * out_maps,),
            (TRANSFORM_KERNELS_THREADS,),
            (
                taps,
                np.int32(conv.in_features),
                np.int32(conv.out_features),
                phases,
                spectra,
                np.int32(chunks),
                np.int32(out_maps),
            ),
            shared_mem=taps_bytes,
        )
        return spectra
