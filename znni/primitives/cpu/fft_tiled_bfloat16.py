"""``fft_tiled`` with spectra in bfloat16: half their memory, two thirds of the multiply-adds.

For processors with AVX512_BF16. Spectra of tiles, of kernels and of their products are rounded to
the 8 significant bits of bfloat16 where they are stored; transforms and sums are in float32. Three
roundings of 1.7e-3 make an error of 2.9e-3, root mean square. The largest error was 3e-3 to 4e-3 of
the largest output in all layers measured, and 7e-3 where there were only two outputs. Where large
products cancel, as of kernels without a mean with inputs that have one, the same error is a larger
share of what is left: 3e-2 was seen. So it is in all arithmetic with 8 bits. That is an accuracy
class of its own, planned only where it is asked for.
"""

from __future__ import annotations

from znni.machine import Device
from znni.options import ACCURACIES
from znni.primitives.cpu.fft_tiled import TILES, FftTiled
from znni.primitives.cpu.tiled.number_formats import BFLOAT16


def primitives(device: Device) -> tuple[FftTiled, ...]:
    """Every tile, with kernels' spectra kept and made anew; none without the instructions."""
    if not device.bfloat16:
        return ()
    return tuple(
        FftTiled(device, tile, resident, BFLOAT16, ACCURACIES["bfloat16"])
        for tile in TILES
        for resident in (True, False)
    )
