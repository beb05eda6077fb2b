"""Scans of synthetic organs, and a network that runs over whole cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from znni.network.network import Network
from znni.network.weights import random_weights

nibabel = pytest.importorskip("nibabel", reason="it is not installed (znni[nifti])")

NET = """\
name: organs
in_features: 1
input: {normalize: [{mean: 20, std: 50, clip: [-100, 150]}], crop: nonzero}
labels: {background: 0, organ: 1, vessel: 2}
spacing: 2,1.5,1.5
window: {size: [6, 8, 8], like: nnunet}
case: {channels: [CT]}
layers:
  - conv: {features: 4, kernel: 3, padding: same}
  - instance_norm: {activation: leaky_relu}
  - conv: {features: 3, kernel: 3, padding: same}
"""


def scan(extents: tuple[int, int, int] = (15, 22, 20), seed: int = 0) -> NDArray[np.int16]:
    """Return smooth values (z, y, x) with a border of zeros."""
    generator = np.random.default_rng(seed)
    values = ndimage.gaussian_filter(generator.standard_normal(extents), 1.5) * 600
    made = np.zeros(extents, np.int16)
    made[1:-2, 2:-1, 3:-2] = values[1:-2, 2:-1, 3:-2].round()
    made[1, 2, 3] = made[-3, -2, -3] = 7  # the corners of the box count
    return made


def write(path: Path, values: NDArray[Any], affine: NDArray[np.float64] | None = None) -> Path:
    if affine is None:
        affine = np.diag([1.0, 1.2, 2.5, 1.0])  # (x, y, z)
    nibabel.save(nibabel.Nifti1Image(values.T, affine), path)
    return path


def weights_file(path: Path, net: Network, seed: int = 7) -> None:
    """Write random weights of a network."""
    arrays = {
        f"{name}.{kind}": array
        for name, weights in random_weights(net, seed).layers.items()
        for kind, array in weights.arrays.items()
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]
