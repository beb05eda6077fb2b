"""One layer's overlap-save convolution on a GPU, ready to run."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.cuda import compile_together, compiled, cupy
from znni.device_arena import device_workspace, new_device_output
from znni.primitives.gpu.common.activation import activate_over_maps
from znni.primitives.gpu.common.strides import strides_in_elements
from znni.primitives.gpu.tiled.tile_batches import TileBatches
from znni.primitives.gpu.tiled.tile_spectrum import GROUP, frequencies, roots
from znni.primitives.gpu.tiled.transform_source import transform_shape
from znni.weights import ConvWeights

TRANSFORM_KERNELS_THREADS = 256


class TiledConvolution:
    """Runs a layer: forward transforms, products and inverse transforms, batch after batch.

    Args:
        batches: the layer's tiles.
        weights: of the layer; their spectra are made now and kept.
    """

    def __init__(self, batches: TileBatches, weights: ConvWeights) -> None:
        layer, product = batches.layer, batches.product
        transform = transform_shape(batches.tile, layer.kernel)
        self._batches, self._transform, self._product = batches, transform, product
        compile_together(
            (
                transform.forward_source(),
                transform.inverse_source(layer.activation),
                transform.kernel_spectra_source(),
                product.source(),
            )
        )
        self._forward = _kernel(
            transform.forward_source(), "forward_transform", transform.shared_bytes(inverse=False)
        )
        self._inverse = _kernel(
            transform.inverse_source(layer.activation),
            "inverse_transform",
            transform.shared_bytes(inverse=True),
        )
        self._multiply = _kernel(product.source(), "multiply_spectra", product.shared_bytes)
        self._bias = cupy().asarray(weights.bias, np.float32)
        self._kernels = self._kernel_spectra(weights)
        self._processors = cupy().cuda.Device().attributes["MultiProcessorCount"]

    def __call__(self, x: Any) -> Any:
        """The output (n, f', z, y, x) for an input (n, f, z, y, x)."""
        batches = self._batches
        y = new_device_output(batches.out)
        spectra = device_workspace((batches.in_spectra_bytes,), np.uint8)
        products = (
            spectra
            if batches.in_place
            else device_workspace((batches.out_spectra_bytes,), np.uint8)
        )
        for first in range(0, batches.count, batches.batch):
            tiles = min(batches.batch, batches.count - first)
            self.transform_tiles(x, spectra, first, tiles)
            self.multiply(spectra, products, tiles)
            self.transform_back(products, y, first, tiles)
        activate_over_maps(y, batches.layer.activation)
        return y

    def transform_tiles(self, x: Any, spectra: Any, first: int, tiles: int) -> None:
        """Transform some tiles of the input."""
        batches, transform = self._batches, self._transform
        maps = batches.layer.in_features
        self._forward(
            (transform.grid(tiles, batches.in_groups, inverse=False),),
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
            ),
            shared_mem=transform.shared_bytes(inverse=False),
        )

    def multiply(self, spectra: Any, products: Any, tiles: int) -> None:
        """Multiply the spectra of some tiles by those of the kernels."""
        batches, product = self._batches, self._product
        count = frequencies(batches.tile)
        out_maps = batches.out_groups * GROUP
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
                np.int32(tiles),
                np.int32(count),
            ),
            shared_mem=product.shared_bytes,
        )

    def transform_back(self, products: Any, y: Any, first: int, tiles: int) -> None:
        """Transform the products of some tiles to the output."""
        batches, transform = self._batches, self._transform
        maps = batches.layer.out_features
        self._inverse(
            (transform.grid(tiles, batches.out_groups, inverse=True),),
            (transform.threads,),
            (
                products,
                np.int32(batches.product_groups),
                y,
                np.int32(maps),
                *map(np.int32, batches.out.size),
                *map(np.int32, batches.grid),
                np.int64(first),
                np.int32(tiles),
                self._bias,
            ),
            shared_mem=transform.shared_bytes(inverse=True),
        )

    def _kernel_spectra(self, weights: ConvWeights) -> Any:
        batches = self._batches
        layer, kernel = batches.layer, batches.layer.kernel
        spectra = cupy().empty(batches.kernel_shape, np.uint32)
        groups, out_maps = batches.kernel_shape[2:4]
        taps_bytes = batches.taps_bytes
        transform = _kernel(
            self._transform.kernel_spectra_source(), "transform_kernels", taps_bytes
        )
        transform(
            (groups * out_maps,),
            (TRANSFORM_KERNELS_THREADS,),
            (
                cupy().asarray(np.ascontiguousarray(weights.weight, np.float32)),
                np.int32(layer.in_features),
                np.int32(layer.out_features),
                cupy().asarray(roots(batches.tile, kernel)),
                spectra,
                np.int32(groups),
                np.int32(out_maps),
            ),
            shared_mem=taps_bytes,
        )
        return spectra


def _kernel(source: str, name: str, shared_bytes: int) -> Any:
    """A kernel that may take that much shared memory."""
    kernel = compiled(source).get_function(name)
    kernel.max_dynamic_shared_size_bytes = shared_bytes
    return kernel
