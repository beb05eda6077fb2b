"""How the numbers of spectra are kept on a GPU, and what that asks of the kernels.

A number is complex. Of some maps, a group, the numbers at a frequency lie together, in a sector of
memory. Sources that depend on the format are files that end in its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from znni.core.options import ACCURACIES
from znni.core.shapes import Vec3
from znni.primitives.gpu.common.rounding import ERROR_OF_11_BITS
from znni.primitives.gpu.common.source import multiply_add_source
from znni.primitives.gpu.fft_tiled.ranges import LEAST_EXPONENT, MOST_EXPONENT, left_shift

# Bytes of a group's numbers at a frequency.
SECTOR = 32

# Numbers of a chunk of 16 bytes of the kernels' spectra, as tensor cores take them.
CHUNK = 4

# Tiles of a product.
ROWS = 64

# Bytes that are copied to shared memory at a time.
COPIED = 16


class NumberFormat(ABC):
    """A format of spectra.

    Attributes:
        name: as the CUDA sources have it.
        suffix: of primitives' names.
        number_bytes: of a number.
        maps_together: products take a multiple of these, input and output maps.
        kernel_parts: 16-bit numbers that sum to one of a kernel's spectrum.
        scaled: whether tiles and kernels have ranges of their own.
        accuracy: the relative error that comes with it.
        efficiencies: shares of the nominal float32 rate that transforms and products sustain,
            measured on an H200: products run on tensor cores.
        row_speeds: beside that share, of the transforms of tiles by their extent along x.
        tile_speeds: in its place, of some tiles.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    number_bytes: ClassVar[int]
    maps_together: ClassVar[int]
    kernel_parts: ClassVar[int]
    scaled: ClassVar[bool]
    accuracy: ClassVar[float]
    efficiencies: ClassVar[tuple[float, float]]
    row_speeds: ClassVar[Mapping[int, float]] = {}
    tile_speeds: ClassVar[Mapping[Vec3, float]] = {}

    def transform_efficiency(self, tile: Vec3) -> float:
        """The share that transforms of such tiles sustain."""
        speed = self.tile_speeds.get(tile, self.row_speeds.get(tile.x, 1.0))
        return self.efficiencies[0] * speed

    @property
    def group(self) -> int:
        """Maps whose numbers lie together."""
        return SECTOR // self.number_bytes

    def product_maps(self, maps: int) -> int:
        """Maps of a product, beyond those that there are of zeros."""
        return -(-maps // self.maps_together) * self.maps_together

    def right_bytes(self, in_maps: int, out_maps: int) -> int:
        """Bytes of a frequency's kernels in shared memory: a matrix twice as high and wide."""
        return self.kernel_parts * (2 * in_maps) * (2 * out_maps) * 2

    @abstractmethod
    def left_bytes(self, in_maps: int) -> int:
        """Bytes of 64 tiles at a frequency in shared memory."""

    @abstractmethod
    def exponent_bytes(self, in_maps: int) -> int:
        """Bytes that are kept of a tile beside its spectrum."""

    @abstractmethod
    def multiply_add(self, columns: int) -> str:
        """A warpgroup's product of 64 x 16 and 16 x columns, added to a sum or in its place."""

    def definitions(self, tile: Vec3) -> Mapping[str, int]:  # noqa: ARG002 - what others need
        """Macros of the transforms."""
        return {"NUMBER_BYTES": self.number_bytes}

    def product_definitions(self, in_maps: int) -> Mapping[str, int]:  # noqa: ARG002
        """Macros of the products."""
        return {"NUMBER_BYTES": self.number_bytes}


class Halves(NumberFormat):
    """Sums of two bfloat16 halves for products, whose results are in float32: no range to mind."""

    name = "halves"
    suffix = ""
    number_bytes = 8
    maps_together = 4
    kernel_parts = 2
    scaled = False
    accuracy = ACCURACIES["float32"]
    efficiencies = (0.086, 4.1)

    def left_bytes(self, in_maps: int) -> int:
        """High and low halves of 64 rows of 2 in_maps."""
        return 2 * ROWS * (2 * in_maps) * 2

    def exponent_bytes(self, in_maps: int) -> int:  # noqa: ARG002
        """None."""
        return 0

    def multiply_add(self, columns: int) -> str:
        """Both sides in shared memory."""
        return multiply_add_source(
            columns, "bf16", left=("unsigned long long a",), transposed="0, 0"
        )


class Float16(NumberFormat):
    """Half of the bytes, and errors as of tf32; each tile and map has a range of its own."""

    name = "float16"
    suffix = "_float16"
    number_bytes = 4
    maps_together = 16
    kernel_parts = 1
    scaled = True
    accuracy = ERROR_OF_11_BITS
    efficiencies = (0.103, 10.0)
    row_speeds: ClassVar[Mapping[int, float]] = {8: 0.64, 12: 0.8, 16: 0.82, 20: 0.96, 28: 1.18}
    tile_speeds: ClassVar[Mapping[Vec3, float]] = {Vec3(16, 20, 32): 1.17}

    def left_bytes(self, in_maps: int) -> int:
        """64 rows, an odd number of half lines apart, and their exponents."""
        return ROWS * ((in_maps // 16 | 1) * 64 + self.exponent_bytes(in_maps))

    def exponent_bytes(self, in_maps: int) -> int:
        """A byte for each group of input maps."""
        return -(-in_maps // (self.group * COPIED)) * COPIED

    def multiply_add(self, columns: int) -> str:
        """The left side in registers."""
        left = tuple(f"unsigned a{i}" for i in range(4))
        return multiply_add_source(columns, "f16", left, transposed="0")

    def definitions(self, tile: Vec3) -> Mapping[str, int]:
        """With the range of the exponents."""
        return {
            "NUMBER_BYTES": self.number_bytes,
            "LEAST_EXPONENT": LEAST_EXPONENT,
            "MOST_EXPONENT": MOST_EXPONENT,
            "LEFT_SHIFT": left_shift(tile),
        }

    def product_definitions(self, in_maps: int) -> Mapping[str, int]:
        """With the bytes of a tile's exponents."""
        return {
            "NUMBER_BYTES": self.number_bytes,
            "LEAST_EXPONENT": LEAST_EXPONENT,
            "MOST_EXPONENT": MOST_EXPONENT,
            "EXPONENTS": self.exponent_bytes(in_maps),
        }


HALVES = Halves()
FLOAT16 = Float16()
