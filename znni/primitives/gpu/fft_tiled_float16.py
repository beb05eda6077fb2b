"""``fft_tiled`` with spectra in float16: half of the bytes, a quarter of the tensor cores' work.

Spectra of tiles, of kernels and of their products are rounded to the 11 significant bits of float16
where they are stored; transforms and sums are in float32. Each tile and group of input maps has an
exponent of its own, and so have the kernels of each output map (``tiled/ranges``): nothing
overflows, and what is dark is as exact as what is bright. The largest error was 2e-4 to 3e-4 of the
largest output for inputs without a mean, and 5e-4 for others: that is the accuracy of tf32, a class
that is planned only where it is asked for.
"""

from __future__ import annotations

from znni.machine import Device
from znni.primitives.gpu.common.capability import HOPPER, capability_of
from znni.primitives.gpu.fft_tiled import TILES, GpuFftTiled
from znni.primitives.gpu.tiled.number_formats import FLOAT16
from znni.shapes import Vec3

# The fastest for 3^3 kernels: long rows are stored well, and a block has room for two maps.
FASTEST = Vec3(16, 20, 32)


def primitives(device: Device) -> tuple[GpuFftTiled, ...]:
    """As ``fft_tiled``, and a tile of unequal extents."""
    if capability_of(device) != HOPPER:
        return ()
    return tuple(GpuFftTiled(device, tile, FLOAT16) for tile in (*TILES, FASTEST))
