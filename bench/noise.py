"""Inputs that every process can make for itself, the same wherever they overlap."""

from __future__ import annotations

import numpy as np

from znni.core.shapes import Shape5, Vec3
from znni.network.network import Network
from znni.network.weights import Float32

ORIGIN = Vec3(0, 0, 0)


def normal(shape: Shape5) -> Float32:
    """Standard normal numbers; a smaller batch of the same maps is the start of a larger one."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def patch_input(network: Network, patch: Vec3, start: Vec3 = ORIGIN) -> Float32:
    """Noise in 0..1 for one patch, (f, z, y, x), of one endless volume.

    So where patches overlap, their output voxels are the same numbers.

    Args:
        network: its field of view is added to the patch.
        patch: output voxels per axis.
        start: its first output voxel.
    """
    size = patch + network.field_of_view - 1
    x = np.zeros((network.in_features, *size), np.float32)
    for axis, (first, extent) in enumerate(zip((0, *start), x.shape, strict=True)):
        along = np.random.default_rng(axis).random(first + extent, dtype=np.float32)[first:]
        x += along.reshape([extent if other == axis else 1 for other in range(4)])
    return np.asarray(np.mod(x, 1, out=x))
