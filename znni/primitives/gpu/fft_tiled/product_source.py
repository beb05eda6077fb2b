"""CUDA C++ of the products of spectra on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from znni.primitives.gpu.common.source import definitions
from znni.primitives.gpu.fft_tiled.cuda_text import cuda_text
from znni.primitives.gpu.fft_tiled.number_formats import NumberFormat

# Shared memory that a block may take, and warpgroups that fit the registers.
SHARED_BYTES = 227 * 1024
MOST_WARPGROUPS = 3

# Output maps of a warpgroup's product at most.
MOST_OUT_MAPS = 80

WARPGROUP_THREADS = 128


@dataclass(frozen=True)
class ProductShape:
    """How the products at one frequency are cut into blocks.

    Attributes:
        numbers: the format of the spectra.
        in_maps: input maps, a multiple of those that go together.
        out_maps: output maps of a block, a multiple of those that go together.
        warpgroups: that take turns.
    """

    numbers: NumberFormat
    in_maps: int
    out_maps: int
    warpgroups: int

    @property
    def shared_bytes(self) -> int:
        """The kernels' spectra of one frequency, and 64 tiles' for each warpgroup."""
        right = self.numbers.right_bytes(self.in_maps, self.out_maps)
        return right + self.warpgroups * self.numbers.left_bytes(self.in_maps)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warpgroups * WARPGROUP_THREADS

    def source(self) -> str:
        """Of ``multiply_spectra``."""
        values = {
            "IN_MAPS": self.in_maps,
            "OUT_MAPS": self.out_maps,
            "WARPGROUPS": self.warpgroups,
            **self.numbers.product_definitions(self.in_maps),
        }
        return "\n".join(
            (
                definitions(values),
                cuda_text("spectrum_layout.cuh"),
                cuda_text("product.cuh"),
                cuda_text(f"{self.numbers.name}.cuh"),
                self.numbers.multiply_add(2 * self.out_maps),
                cuda_text(f"product_{self.numbers.name}.cu"),
            )
        )


def product_shape(in_maps: int, out_maps: int, numbers: NumberFormat) -> ProductShape | None:
    """The largest share of the output maps that shared memory has room for; None for no room."""
    inner, outer = numbers.product_maps(in_maps), numbers.product_maps(out_maps)
    passes = -(-outer // MOST_OUT_MAPS)
    while passes * numbers.maps_together <= outer:
        share = numbers.product_maps(-(-outer // passes))
        room = SHARED_BYTES - numbers.right_bytes(inner, share)
        warpgroups = min(MOST_WARPGROUPS, room // numbers.left_bytes(inner))
        if warpgroups > 1:
            return ProductShape(numbers, inner, share, warpgroups)
        passes += 1
    return None
