"""The weight of each voxel of a window, for the mean where windows overlap.

The gaussians are those of MONAI 1.6 (``compute_importance_map``) and of nnU-Net 2
(``compute_gaussian``, here in float32).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import Blend, WindowRules
from znni.core.shapes import Vec3

Floats: TypeAlias = NDArray[np.float32]

SIGMA = 1 / 8  # of the gaussian, as a share of the window
LEAST_WEIGHT = 1e-3  # in MONAI, beside the least of the gaussian
LARGEST_WEIGHT = 10.0  # in nnU-Net


def importance(size: Vec3, blend: Blend, like: WindowRules) -> Floats:
    """Return how much each voxel (z, y, x) of a window counts."""
    if blend == "constant":
        return np.ones(size, np.float32)
    if like == "nnunet":
        axes = [_filtered(extent) for extent in size]
    else:
        axes = [_gaussian(extent) for extent in size]
    z, y, x = axes
    importances = z[:, None, None] * y[:, None] * x
    if like == "nnunet":
        importances *= LARGEST_WEIGHT / importances.max()
        importances[importances == 0] = importances[importances > 0].min()
    else:
        importances = np.maximum(importances, max(importances.min(), LEAST_WEIGHT))
    return importances.astype(np.float32)


def _gaussian(extent: int) -> NDArray[np.float64]:
    apart = np.arange(extent) - (extent - 1) / 2
    return np.asarray(np.exp(-(apart**2) / (2 * (SIGMA * extent) ** 2)))


def _filtered(extent: int) -> NDArray[np.float64]:
    """Return a point in the middle, blurred with SciPy's gaussian, which ends at four sigmas."""
    from scipy.ndimage import gaussian_filter1d  # half a second, which few networks need

    point = np.zeros(extent)
    point[extent // 2] = 1
    return np.asarray(gaussian_filter1d(point, SIGMA * extent, mode="constant"))
