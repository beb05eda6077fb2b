"""A volume as HTML, for notebooks: what it is, and its middle plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from znni.core import html
from znni.core.shapes import Box, Vec3

if TYPE_CHECKING:
    from znni.volumes.array import ArrayVolume

SIDE = 256  # most pixels of the picture along an axis
MOST = 1024  # most voxels along an axis that are read for it


def volume_html(volume: ArrayVolume) -> str:
    """Return a table of what a volume is, and the middle of its middle plane."""
    rows = [
        ("volume", volume.name),
        ("maps", ", ".join(volume.maps) or str(volume.features)),
        ("voxels (z, y, x)", str(volume.size)),
        ("type", str(volume.dtype)),
        ("place", str(volume.grid)),
    ]
    return html.table(rows) + html.grey_picture(_plane(volume), "middle plane")


def _plane(volume: ArrayVolume) -> NDArray[np.uint8]:
    extent = volume.size.minimum(Vec3(1, MOST, MOST))
    start = (volume.size - extent) // 2
    values = volume.read(Box(start, start + extent), slice(0, 1))[0, 0].astype(np.float32)
    step = -(-max(values.shape) // SIDE)
    values = np.nan_to_num(values[::step, ::step])
    low, high = float(values.min()), float(values.max())
    grey: NDArray[np.uint8] = np.rint((values - low) / ((high - low) or 1) * 255).astype(np.uint8)
    return grey
