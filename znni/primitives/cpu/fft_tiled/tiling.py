"""The tiles of all images of a layer's input: their number, places, reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5, Vec3
from znni.primitives.cpu.fft_tiled.overlap_save import (
    TABLE_COLUMNS,
    UNPOOLED,
    inner_extents,
    tile_count,
    tiles_of,
)
from znni.primitives.cpu.fft_tiled.tile_transform import outputs_computed

INDEX_BYTES = 8
PLACE_NUMBERS = 6


@dataclass(frozen=True)
class Tiling:
    """A layer's tiles, all of one size.

    Attributes:
        tile: extents of a tile.
        shape: shape of the input.
        kernel: kernel of the convolution.
        window: window of the pooling after it; one voxel if there is none.
    """

    tile: Vec3
    shape: Shape5
    kernel: Vec3
    window: Vec3 = UNPOOLED

    @property
    def read(self) -> Vec3:
        """Voxels that a tile reads."""
        return self._inner[0]

    @property
    def written(self) -> Vec3:
        """Voxels of the output, after any pooling, that a tile writes."""
        return self._inner[1]

    @property
    def wanted(self) -> Vec3:
        """Voxels of the convolution that a tile writes or pools."""
        return self.written * self.window

    @property
    def computed(self) -> Vec3:
        """Voxels that a tile's inverse transform computes along each axis.

        Whole lines and planes that nobody needs are left out.
        """
        return Vec3(*map(outputs_computed, self.wanted, self.tile))

    @cached_property
    def count(self) -> int:
        """Number of tiles in all images."""
        return self.shape.n * tile_count(self.tile, self.shape.size, self.kernel, self.window)

    def places(self) -> NDArray[np.int64]:
        """Return the places of the tiles of one image, by ``tiles_of``."""
        return tiles_of(self.tile, self.shape.size, self.kernel, self.window)

    @property
    def place_bytes(self) -> int:
        """Bytes of the ``places``."""
        return self.count // self.shape.n * PLACE_NUMBERS * INDEX_BYTES

    @property
    def table_bytes(self) -> int:
        """Bytes of the two ``tile_table``s, of the input and of the output."""
        return 2 * self.count * TABLE_COLUMNS * INDEX_BYTES

    @cached_property
    def _inner(self) -> tuple[Vec3, Vec3]:
        return inner_extents(self.tile, self.shape.size, self.kernel, self.window)
