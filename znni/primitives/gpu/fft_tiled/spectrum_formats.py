"""The formats of spectra on a GPU, and what follows from them for the kernels.

A number is complex. The numbers of some maps, a group, lie together at each frequency, in a sector
of memory. CUDA sources that depend on the format end in its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from znni.core.shapes import Vec3
from znni.primitives.gpu.common.hardware import SECTOR_BYTES, Chip
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR, FLOAT16, TensorFormat
from znni.primitives.gpu.fft_tiled.ranges import LEAST_EXPONENT, MOST_EXPONENT, left_shift

# Numbers of a chunk of 16 bytes of the kernels' spectra, as tensor cores take them.
CHUNK = 4

# Tiles of a product.
ROWS = 64

# Operations of a Hopper's tensor cores in a cycle, by products of warpgroups.
WARPGROUP_FLOPS = 4096

# Bytes that are copied to shared memory at a time.
COPIED = 16


class SpectrumFormat(ABC):
    """A format of spectra.

    Attributes:
        numbers: the format of the numbers that are multiplied.
        number_bytes: bytes of a number in memory.
        maps_together: products take a multiple of so many input maps, and of output maps.
        scaled: whether tiles and kernels have ranges of their own.
        cycle_flops: operations that transforms and products sustain on a multiprocessor in a
            cycle, measured on an H200. Products run on tensor cores.
        row_speeds: factors on the transforms' share, by the tile's extent along x.
        tile_speeds: factors for some tiles, which replace those by extent.
        lone_speeds: factors by the maps of blocks that share no memory: the fewer they have, the
            smaller are the parts of a sector that they write.
    """

    numbers: ClassVar[TensorFormat]
    number_bytes: ClassVar[int]
    maps_together: ClassVar[int]
    scaled: ClassVar[bool]
    cycle_flops: ClassVar[tuple[float, float]]
    row_speeds: ClassVar[Mapping[int, float]] = {}
    tile_speeds: ClassVar[Mapping[Vec3, float]] = {}
    lone_speeds: ClassVar[Mapping[int, float]]

    def transform_flops(self, tile: Vec3) -> float:
        """Return the operations of a cycle that transforms of such tiles sustain."""
        speed = self.tile_speeds.get(tile, self.row_speeds.get(tile.x, 1.0))
        return self.cycle_flops[0] * speed

    def product_flops(self, chip: Chip) -> float:
        """Return the operations of a cycle that a chip's products sustain."""
        rate = WARPGROUP_FLOPS if chip.has_warpgroups else chip.tensor_flops
        return self.cycle_flops[1] * min(1.0, rate / WARPGROUP_FLOPS)

    @property
    def group(self) -> int:
        """Maps whose numbers lie together."""
        return SECTOR_BYTES // self.number_bytes

    def product_maps(self, maps: int) -> int:
        """Return the maps of a product, which are padded with zeros."""
        return -(-maps // self.maps_together) * self.maps_together

    def right_bytes(self, in_maps: int, out_maps: int) -> int:
        """Return a frequency's kernels in shared memory, a matrix twice as high and wide."""
        return self.numbers.parts * (2 * in_maps) * (2 * out_maps) * 2

    @abstractmethod
    def row_bytes(self, in_maps: int, exponent_maps: int) -> int:
        """Return the bytes of a tile at a frequency in shared memory."""

    @abstractmethod
    def exponent_bytes(self, in_maps: int, exponent_maps: int) -> int:
        """Return the bytes that are kept of a tile beside its spectrum.

        Args:
            in_maps: input maps of a product.
            exponent_maps: maps that have an exponent in common.
        """

    def definitions(self, tile: Vec3) -> Mapping[str, int]:  # noqa: ARG002 - what others need
        """Return macros of the transforms."""
        return {"NUMBER_BYTES": self.number_bytes}

    def product_definitions(self, in_maps: int, exponent_maps: int) -> Mapping[str, int]:  # noqa: ARG002
        """Return macros of the products."""
        return {"NUMBER_BYTES": self.number_bytes}


class PairSpectra(SpectrumFormat):
    """Pairs of bfloat16 for products, whose results are in float32: any range is kept."""

    numbers = BFLOAT16_PAIR
    number_bytes = 8
    maps_together = 4
    scaled = False
    cycle_flops = (25.6, 1222)
    lone_speeds: ClassVar[Mapping[int, float]] = {4: 0.95, 2: 0.68, 1: 0.52}

    def row_bytes(self, in_maps: int, exponent_maps: int) -> int:  # noqa: ARG002
        """Return the bytes of the high and low halves of 2 in_maps numbers."""
        return 2 * (2 * in_maps) * 2

    def exponent_bytes(self, in_maps: int, exponent_maps: int) -> int:  # noqa: ARG002
        """Return 0: tiles have no exponents."""
        return 0


class Float16Spectra(SpectrumFormat):
    """float16, with half of the bytes and errors as in tf32; tiles and maps have own ranges."""

    numbers = FLOAT16
    number_bytes = 4
    maps_together = 16
    scaled = True
    cycle_flops = (30.7, 2980)
    lone_speeds: ClassVar[Mapping[int, float]] = {8: 1.0, 4: 0.9, 2: 0.72, 1: 0.58}
    row_speeds: ClassVar[Mapping[int, float]] = {8: 0.64, 12: 0.8, 16: 0.82, 20: 0.96, 28: 1.18}
    tile_speeds: ClassVar[Mapping[Vec3, float]] = {Vec3(16, 20, 32): 1.17}

    def row_bytes(self, in_maps: int, exponent_maps: int) -> int:
        """Return the bytes of a row, an odd number of half lines, and of its exponents."""
        return (in_maps // 16 | 1) * 64 + self.exponent_bytes(in_maps, exponent_maps)

    def exponent_bytes(self, in_maps: int, exponent_maps: int) -> int:
        """Return one byte for each exponent, in whole copies."""
        return -(-in_maps // (exponent_maps * COPIED)) * COPIED

    def definitions(self, tile: Vec3) -> Mapping[str, int]:
        """Return macros of the transforms, with the range of the exponents."""
        return {
            "NUMBER_BYTES": self.number_bytes,
            "LEAST_EXPONENT": LEAST_EXPONENT,
            "MOST_EXPONENT": MOST_EXPONENT,
            "LEFT_SHIFT": left_shift(tile),
        }

    def product_definitions(self, in_maps: int, exponent_maps: int) -> Mapping[str, int]:
        """Return macros of the products, with the bytes of a tile's exponents."""
        return {
            "NUMBER_BYTES": self.number_bytes,
            "LEAST_EXPONENT": LEAST_EXPONENT,
            "MOST_EXPONENT": MOST_EXPONENT,
            "EXPONENTS": self.exponent_bytes(in_maps, exponent_maps),
            "EXPONENT_MAPS": exponent_maps,
        }


SPECTRA: Mapping[TensorFormat, SpectrumFormat] = {
    spectra.numbers: spectra for spectra in (PairSpectra(), Float16Spectra())
}
