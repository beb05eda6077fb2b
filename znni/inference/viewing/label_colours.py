"""Colours of labels."""

from __future__ import annotations

from colorsys import hsv_to_rgb
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 times the golden ratio less 1
SHADES = ((0.85, 1.0), (0.5, 1.0), (0.95, 0.75))  # saturation and brightness


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
