"""Convolution by overlap-save with the max-pooling after it, for few input maps.

The output of a first layer has many maps at the full resolution. It is the largest array of all,
and it is only pooled. Here a tile is pooled while it is in cache, and only the pooled voxels are
written. With few input maps, the products of spectra are hardly any work. The inverse transform
forms them as it reads them.

Like any plain pooling it gives one fragment of its window; each other fragment takes another run.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.option_types import ACCURACIES
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.layers import Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applying
from znni.primitives.cpu.common.activation import with_activation
from znni.primitives.cpu.common.first_layer import pooled_first_layer
from znni.primitives.cpu.fft_tiled.overlap_save import tile_extents
from znni.primitives.cpu.fft_tiled_pooled.tiles import PooledTiles

# Offered limits on the extents of tiles along z and y. Along x tiles are longer, so that they write
# nearly whole cache lines.
TILES = (12, 16, 20, 24, 32)
LONGEST_ROW = 40

# Share of a core's nominal operations per second, if a tile's planes stay in the second-level
# cache. Beyond that, it falls with the square root of their bytes.
EFFICIENCY = 0.5
CACHED_BYTES = 700 * 1024


@dataclass(frozen=True)
class FftTiledPooled:
    """Overlap-save convolution and plain max-pooling in one primitive.

    Attributes:
        device: processor that runs it.
        tile: largest extent of a tile along z and y.
        accuracy: relative error that it promises.
    """

    device: Device
    tile: int
    accuracy: float = ACCURACIES["float32"]
    version = 1

    @property
    def name(self) -> str:
        """``fft_tiled_pooled_16``, by the tile."""
        return f"fft_tiled_pooled_{self.tile}"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for few maps with pooling, or None if a smaller tile serves."""
        tiles = self._tiles(layer, shape)
        return tiles.out if tiles else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: operations of codelets, products and maxima, and memory traffic."""
        tiles = applying(self._tiles(layer, shape), self, layer, shape)
        memory = Memory.beside(
            shape.nbytes + tiles.out.nbytes,
            workspace=tiles.workspace_bytes(self.device.threads),
            resident=tiles.resident_bytes,
        )
        efficiency = EFFICIENCY * min(1.0, CACHED_BYTES / tiles.plane_bytes) ** 0.5
        activation, threads = tiles.layer.conv.activation, self.device.threads
        handed = HandedOut(1)
        cost = Cost(tiles.flops, tiles.bytes_moved, memory, efficiency, handed)
        return with_activation(cost, activation, tiles.out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels for the tile's lengths; transform the layer's kernels."""
        from znni.primitives.cpu.fft_tiled_pooled.convolution import PooledConvolution

        tiles = applying(self._tiles(layer, shape), self, layer, shape)
        given = conv_weights(tiles.layer.conv, weights)
        return PooledConvolution(tiles, given, self.device.threads)

    def _tiles(self, layer: Operation, shape: Shape5) -> PooledTiles | None:
        found = pooled_first_layer(layer, shape)
        if found is None:
            return None
        pair, out = found
        before = max((tile for tile in TILES if tile < self.tile), default=0)
        largest = Vec3(self.tile, self.tile, LONGEST_ROW)
        smaller = Vec3(before, before, LONGEST_ROW)
        kernel, window = pair.conv.kernel, pair.pool.window
        tile = tile_extents(largest, smaller, shape.size, kernel, window)
        return tile and PooledTiles(pair, shape, out, tile)


def primitives(device: Device) -> tuple[FftTiledPooled, ...]:
    """Return a primitive for each tile."""
    return tuple(FftTiledPooled(device, tile) for tile in TILES)
