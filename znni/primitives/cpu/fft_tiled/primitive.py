"""Convolution by overlap-save: small Fourier transforms of tiles that stay in cache.

A tile of T voxels along an axis gives T - k + 1 outputs. The spectra of a batch of tiles are stored
frequency by frequency, so that a layer is a matrix product at each frequency. The kernels' spectra
are read once for the whole batch. The product is made in place, and the inverse transform computes
only valid outputs. The kernels' spectra are made once and kept between calls, or made in each call
to save memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from znni.core.option_types import ACCURACIES
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation, SummedConv
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import Run, applying, convolution_of, convolved
from znni.primitives.cpu.common.activation import with_activation, with_added
from znni.primitives.cpu.fft_tiled.number_formats import BFLOAT16, FLOAT32, NumberFormat
from znni.primitives.cpu.fft_tiled.overlap_save import tile_extents
from znni.primitives.cpu.fft_tiled.tile_batches import TileBatches

# Offered limits on the extents of tiles. Extents between them are used too.
TILES = (8, 12, 16, 20, 24, 32, 40)

# Share of a core's nominal operations per second that the kernels' transforms sustain. The
# transforms for 80 maps took 2 to 97 ms on two cores, by tile and kernel. For 3^3 kernels in tiles
# of 16 they took 7 ms and 106 MB.
KERNEL_EFFICIENCY = 0.35

# Phases of a batch of tiles: forward transforms, products and inverse transforms.
PHASES = 3


@dataclass(frozen=True)
class FftTiled:
    """Overlap-save convolution with tiles of up to ``tile`` voxels along each axis.

    Attributes:
        device: processor that runs it.
        tile: largest extent of a tile along an axis.
        resident: True if the kernels' spectra are kept between calls.
        numbers: format of the spectra.
        accuracy: relative error of the format.
    """

    device: Device
    tile: int
    resident: bool
    numbers: NumberFormat = FLOAT32
    accuracy: float = ACCURACIES["float32"]
    version = 2

    @cached_property
    def name(self) -> str:
        """``fft_tiled_16`` or ``fft_tiled_16_transient``, by tile and number format."""
        return self.bounded_by + "_transient" * (not self.resident)

    @cached_property
    def bounded_by(self) -> str:
        """The name of the primitive that keeps the spectra of the same tiles."""
        return f"fft_tiled_{self.tile}{self.numbers.suffix}"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape, or None if a tile of this extent is not useful.

        The kernel may fill the tile, or a smaller tile may serve these images as well.
        """
        batches = self._batches(layer, shape)
        return batches.out if batches else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: operations of codelets and products, and all passes over the spectra."""
        batches = applying(self._batches(layer, shape), self, layer, shape)
        kept, made = (batches.kernel_bytes, 0) if self.resident else (0, batches.kernel_bytes)
        memory = Memory.beside(
            shape.nbytes + batches.out.nbytes,
            workspace=batches.workspace_bytes(self.device.threads) + made,
            resident=batches.tiling.place_bytes + kept,
        )
        threads = self.device.threads
        handed = HandedOut(PHASES).times(batches.batches)
        cost = Cost(
            batches.flops, batches.bytes_moved, memory, batches.efficiency(self.device), handed
        )
        if not self.resident:
            flops, moved = batches.kernel_flops, batches.kernel_bytes
            cost = cost.plus(flops, KERNEL_EFFICIENCY, moved, HandedOut(1))
        cost = with_added(cost, layer, batches.out)
        return with_activation(cost, batches.layer.activation, batches.out, threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels for the tile's lengths; transform the layer's kernels."""
        from znni.primitives.cpu.fft_tiled.tiled_convolution import TiledConvolution

        batches = applying(self._batches(layer, shape), self, layer, shape)
        given = conv_weights(batches.layer, weights)
        adds = isinstance(layer, SummedConv)
        return TiledConvolution(batches, given, self.device.threads, self.resident, adds=adds)

    def _batches(self, layer: Operation, shape: Shape5) -> TileBatches | None:
        return _batches(convolution_of(layer), shape, self.tile, self.numbers)


# A planner asks for the shape and the cost of each layer, with spectra kept and with spectra made
# in each call.
@lru_cache(maxsize=1024)
def _batches(
    layer: Operation, shape: Shape5, largest: int, numbers: NumberFormat
) -> TileBatches | None:
    out = convolved(layer, shape)
    if out is None or not isinstance(layer, Conv) or layer.kernel.volume == 1:
        return None
    smaller = max((tile for tile in TILES if tile < largest), default=0)
    tile = tile_extents(Vec3.of(largest), Vec3.of(smaller), shape.size, layer.kernel)
    return tile and TileBatches(layer, shape, out, tile, numbers)


def primitives(device: Device) -> tuple[FftTiled, ...]:
    """Return a primitive for each tile and number format, with spectra kept or made in each call.

    Spectra in bfloat16 are offered only if the processor multiplies bfloat16.
    """
    exact = [FftTiled(device, tile, resident) for tile in TILES for resident in (True, False)]
    if not device.bfloat16:
        return tuple(exact)
    return (
        *exact,
        *(replace(each, numbers=BFLOAT16, accuracy=ACCURACIES["bfloat16"]) for each in exact),
    )
