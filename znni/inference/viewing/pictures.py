"""Volumes as pictures: all planes of a sample in a grid."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.png import grey_png
from znni.core.shapes import Box, Vec3
from znni.core.volume import Volume

SLAB = 2**24  # values read at a time


def sampled(volume: Volume, feature: int, box: Box, stride: int) -> NDArray[np.float32]:
    """Return one map (z, y, x) of a box, sampled with a stride along each axis."""
    plane = volume.features * box.size.y * box.size.x
    depth = max(1, SLAB // plane // stride) * stride
    slabs = []
    for z in range(box.start.z, box.stop.z, depth):
        slab = Box(box.start._replace(z=z), box.stop._replace(z=min(z + depth, box.stop.z)))
        values = volume.read(slab)[feature, ::stride, ::stride, ::stride]
        slabs.append(values.astype(np.float32))
    return np.concatenate(slabs)


def range_of(values: NDArray[np.float32], *, output: bool) -> tuple[float, float]:
    """Return the values of black and white.

    These are 0 and 1 for an output of probabilities, otherwise percentiles that leave out extremes.
    """
    finite = values[np.isfinite(values)]
    if not finite.size or (output and finite.min() >= 0 and finite.max() <= 1):
        return 0.0, 1.0
    low, high = (float(value) for value in np.percentile(finite, (0.5, 99.5)))
    return low, high if high > low else low + 1


@dataclass(frozen=True)
class Picture:
    """Picture of a sample on the page.

    Attributes:
        name: name shown to people.
        low: value shown as black.
        high: value shown as white.
        address: data URL that holds the planes as a PNG.
    """

    name: str
    low: float
    high: float
    address: str

    @property
    def shades(self) -> dict[str, Any]:
        """Everything except the picture itself."""
        return {"name": self.name, "low": self.low, "high": self.high}


def picture_of(name: str, values: NDArray[np.float32], low: float, high: float) -> Picture:
    """Return a picture of values (z, y, x), in shades of grey from ``low`` to ``high``."""
    shades = (np.nan_to_num(values, nan=low) - low) / (high - low) * 255
    grid = planes_in_grid(np.rint(shades.clip(0, 255)).astype(np.uint8))
    encoded = b64encode(grey_png(grid)).decode()
    return Picture(name, low, high, f"data:image/png;base64,{encoded}")


def grid_columns(size: Vec3) -> int:
    """Return the number of planes in a row, for a grid about as high as it is wide."""
    return max(1, isqrt(ceil(size.z * size.y / size.x)))


def planes_in_grid(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Arrange planes (z, y, x) in rows; unused places of the last row are black."""
    depth, height, width = values.shape
    columns = grid_columns(Vec3(depth, height, width))
    rows = ceil(depth / columns)
    padded = np.zeros((rows * columns, height, width), np.uint8)
    padded[:depth] = values
    grid = padded.reshape(rows, columns, height, width).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width)
