"""The products of spectra on tensor cores: how they are cut into blocks, and their source."""

from __future__ import annotations

from dataclasses import dataclass

from znni.machine.cuda_kernels import source_beside
from znni.primitives.gpu.common.hardware import LANES, Chip
from znni.primitives.gpu.common.kernels import (
    common_code,
    definitions,
    products_source,
    warp_mma_source,
)
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR
from znni.primitives.gpu.fft_tiled.spectrum_formats import SpectrumFormat

# Warps of a block whose registers a multiprocessor holds, and the fewest that keep tensor cores
# busy while others move data.
MOST_WARPS = 12
LEAST_WARPS = {4: 8, 1: 4}

# Output maps of a block's product at most.
MOST_OUT_MAPS = 80

# Tiles of a warp.
WARP_ROWS = 16


@dataclass(frozen=True)
class ProductShape:
    """The division of the products at one frequency into blocks.

    Attributes:
        chip: the chip that computes them.
        in_maps: input maps, padded to a multiple of those that go together.
        out_maps: output maps of a block, a multiple of those that go together.
        teams: teams of warps, which take turns. A team multiplies 16 tiles for each warp.
        exponent_maps: input maps that have an exponent in common, if the format has any.
    """

    chip: Chip
    spectra: SpectrumFormat
    in_maps: int
    out_maps: int
    teams: int
    exponent_maps: int

    @property
    def shared_bytes(self) -> int:
        """Bytes of the kernels' spectra at one frequency, and of the tiles of all teams."""
        row = self.spectra.row_bytes(self.in_maps, self.exponent_maps)
        right = self.spectra.right_bytes(self.in_maps, self.out_maps)
        return right + self.warps * WARP_ROWS * row

    @property
    def exponent_bytes(self) -> int:
        """Bytes of a tile's exponents."""
        return self.spectra.exponent_bytes(self.in_maps, self.exponent_maps)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.teams * self.chip.product_warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * LANES

    def source(self) -> str:
        """Return the CUDA source of ``multiply_spectra``."""
        spectra, chip = self.spectra, self.chip
        values = {
            "IN_MAPS": self.in_maps,
            "OUT_MAPS": self.out_maps,
            "TEAMS": self.teams,
            "TEAM_WARPS": chip.product_warps,
            **spectra.product_definitions(self.in_maps, self.exponent_maps),
        }
        is_pair = spectra.numbers is BFLOAT16_PAIR
        if is_pair and not chip.has_warpgroups:
            products = warp_mma_source(spectra.numbers)
        else:
            products = products_source(
                chip, 2 * self.out_maps, spectra.numbers, left_in_registers=not is_pair
            )
        of_chip = f"product_{spectra.numbers.name}_{'wgmma' if chip.has_warpgroups else 'mma'}.cuh"
        parts = (
            definitions(values),
            source_beside(__file__, "spectrum_layout.cuh"),
            products,
            source_beside(__file__, "product.cuh"),
            spectrum_source(spectra),
            source_beside(__file__, of_chip) if is_pair else "",
            source_beside(__file__, f"product_{spectra.numbers.name}.cu"),
        )
        return "\n".join(parts)


def spectrum_source(spectra: SpectrumFormat) -> str:
    """Return CUDA functions that convert numbers of a format, and order kernels' spectra."""
    is_pair = spectra.numbers is BFLOAT16_PAIR
    pairs = common_code("bfloat16_pair.cuh") if is_pair else common_code("float16_pair.cuh")
    return pairs + source_beside(__file__, f"spectrum_{spectra.numbers.name}.cuh")


def product_shape(
    in_maps: int, out_maps: int, spectra: SpectrumFormat, chip: Chip, exponent_maps: int
) -> ProductShape | None:
    """Return the shape with the most output maps in a block, or None without room for any."""
    inner, outer = spectra.product_maps(in_maps), spectra.product_maps(out_maps)
    together = chip.product_warps
    passes = -(-outer // MOST_OUT_MAPS)
    while passes * spectra.maps_together <= outer:
        share = spectra.product_maps(-(-outer // passes))
        room = chip.block_shared_bytes - spectra.right_bytes(inner, share)
        team_bytes = together * WARP_ROWS * spectra.row_bytes(inner, exponent_maps)
        teams = min(MOST_WARPS // together, room // team_bytes)
        if teams * together >= LEAST_WARPS[together]:
            return ProductShape(chip, spectra, inner, share, teams, exponent_maps)
        passes += 1
    return None
