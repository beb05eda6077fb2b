"""The products of spectra on tensor cores: how they are cut into blocks, and their source."""

from __future__ import annotations

from dataclasses import dataclass

from znni.machine.cuda_kernels import source_beside
from znni.primitives.gpu.common.hardware import HOPPER, WARPGROUP_THREADS
from znni.primitives.gpu.common.kernels import bfloat16_pair_source, definitions, products_source
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR
from znni.primitives.gpu.fft_tiled.spectrum_formats import SpectrumFormat

# Warpgroups of a block whose registers a multiprocessor holds.
MOST_WARPGROUPS = 3

# Output maps of a warpgroup's product at most.
MOST_OUT_MAPS = 80


@dataclass(frozen=True)
class ProductShape:
    """The division of the products at one frequency into blocks.

    Attributes:
        spectra: the format of the spectra.
        in_maps: input maps, padded to a multiple of those that go together.
        out_maps: output maps of a block, a multiple of those that go together.
        warpgroups: warpgroups, which take turns.
    """

    spectra: SpectrumFormat
    in_maps: int
    out_maps: int
    warpgroups: int

    @property
    def shared_bytes(self) -> int:
        """Bytes of the kernels' spectra at one frequency, and of 64 tiles for each warpgroup."""
        right = self.spectra.right_bytes(self.in_maps, self.out_maps)
        return right + self.warpgroups * self.spectra.left_bytes(self.in_maps)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warpgroups * WARPGROUP_THREADS

    def source(self) -> str:
        """Return the CUDA source of ``multiply_spectra``."""
        spectra = self.spectra
        values = {
            "IN_MAPS": self.in_maps,
            "OUT_MAPS": self.out_maps,
            "WARPGROUPS": self.warpgroups,
            **spectra.product_definitions(self.in_maps),
        }
        columns = 2 * self.out_maps
        parts = (
            definitions(values),
            source_beside(__file__, "spectrum_layout.cuh"),
            products_source(
                HOPPER, columns, spectra.numbers, left_in_registers=spectra.left_in_registers
            ),
            source_beside(__file__, "product.cuh"),
            spectrum_source(spectra),
            source_beside(__file__, f"product_{spectra.numbers.name}.cu"),
        )
        return "\n".join(parts)


def spectrum_source(spectra: SpectrumFormat) -> str:
    """Return CUDA functions that convert numbers of a format, and order kernels' spectra."""
    pairs = bfloat16_pair_source() if spectra.numbers is BFLOAT16_PAIR else ""
    return pairs + source_beside(__file__, f"spectrum_{spectra.numbers.name}.cuh")


def product_shape(in_maps: int, out_maps: int, spectra: SpectrumFormat) -> ProductShape | None:
    """Return the shape with the most output maps in a block, or None without room for any."""
    inner, outer = spectra.product_maps(in_maps), spectra.product_maps(out_maps)
    passes = -(-outer // MOST_OUT_MAPS)
    while passes * spectra.maps_together <= outer:
        share = spectra.product_maps(-(-outer // passes))
        room = HOPPER.block_shared_bytes - spectra.right_bytes(inner, share)
        warpgroups = min(MOST_WARPGROUPS, room // spectra.left_bytes(inner))
        if warpgroups > 1:
            return ProductShape(spectra, inner, share, warpgroups)
        passes += 1
    return None
