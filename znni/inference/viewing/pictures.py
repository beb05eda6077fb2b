"""Samples of volumes as pictures: all planes in a grid, and labels in colours."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.png import png
from znni.core.shapes import Vec3

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 times the golden ratio less 1
SHADES = ((0.85, 1.0), (0.5, 1.0), (0.95, 0.75))  # saturation and brightness


def range_of(values: NDArray[np.float32], *, output: bool) -> tuple[float, float]:
    """Return the values of black and white.

    These are 0 and 1 for an output of probabilities, otherwise percentiles that leave out extremes.
    The largest values of an output are no extremes: what it finds may be rare.
    """
    finite = values[np.isfinite(values)]
    if not finite.size or (output and finite.min() >= 0 and finite.max() <= 1):
        return 0.0, 1.0
    low, high = (float(value) for value in np.percentile(finite, (0.5, 100 if output else 99.5)))
    return low, high if high > low else low + max(1.0, 1e-6 * abs(low))  # adds to any float


@dataclass(frozen=True)
class Picture:
    """Picture of a sample on the page.

    Attributes:
        description: its name and the meaning of its pixels, for the page's program.
        address: data URL that holds the planes as a PNG.
    """

    description: Mapping[str, Any]
    address: str


def picture_of(
    name: str, values: NDArray[np.float32], low: float, high: float, *, whole: bool = False
) -> Picture:
    """Return a picture of values (z, y, x), in shades of grey from ``low`` to ``high``.

    ``whole`` says that values are integers, and that the shades tell them apart.
    """
    shades = (np.nan_to_num(values, nan=low) - low) / (high - low) * 255
    grid = planes_in_grid(np.rint(shades.clip(0, 255)).astype(np.uint8))
    ends = {"below": bool(shades.min() < -0.5), "above": bool(shades.max() > 255.5)}
    description = {"name": name, "low": low, "high": high, "whole": whole, **ends}
    return Picture(description, _address(grid))


def picture_of_labels(name: str, values: NDArray[Any], names: Mapping[int, str]) -> Picture:
    """Return a picture of labels (z, y, x): each pixel holds the number of its label in a list.

    Args:
        name: name shown to people.
        values: the labels.
        names: names of labels.
    """
    known, numbers = np.unique(values, return_inverse=True)
    numbers = numbers.reshape(values.shape).astype(np.uint32)
    pixels = np.stack([numbers >> shift & 255 for shift in (0, 8, 16)], axis=-1)
    grid = planes_in_grid(pixels.astype(np.uint8))
    labels = [str(label) for label in known.tolist()]  # as texts: JavaScript rounds above 2^53
    named = [names.get(int(label), "") for label in known.tolist()]
    description = {"name": name, "labels": labels, "names": named, "colours": colours_of(known)}
    return Picture(description, _address(grid))


def colours_of(labels: NDArray[Any]) -> list[tuple[int, int, int]]:
    """Return red, green and blue of each label, from 0 to 255.

    A label has the same colour everywhere. Steps of the golden ratio around the circle of hues keep
    the hues of following labels apart.
    """
    numbers = labels.astype(np.int64).view(np.uint64) if labels.dtype.kind != "u" else labels
    hues = (numbers.astype(np.uint64) * GOLDEN) / 2.0**64  # products wrap around
    colours = []
    for hue, number in zip(hues.tolist(), numbers.tolist(), strict=True):
        red, green, blue = hsv_to_rgb(hue, *SHADES[number % len(SHADES)])
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours


def _address(grid: NDArray[np.uint8]) -> str:
    return f"data:image/png;base64,{b64encode(png(grid)).decode()}"


def grid_columns(size: Vec3) -> int:
    """Return the number of planes in a row, for a grid about as high as it is wide."""
    return max(1, isqrt(ceil(size.z * size.y / size.x)))


def planes_in_grid(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Arrange planes (z, y, x) or (z, y, x, colours) in rows; unused places are black."""
    depth, height, width, *colours = values.shape
    columns = grid_columns(Vec3(depth, height, width))
    rows = ceil(depth / columns)
    padded = np.zeros((rows * columns, height, width, *colours), np.uint8)
    padded[:depth] = values
    grid = padded.reshape(rows, columns, height, width, *colours).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, *colours)
