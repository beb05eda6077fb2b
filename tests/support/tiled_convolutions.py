"""Convolutions that tiled transforms must compute correctly in any spectrum format.

They have tiles of many lengths, kernels of even extents and kernels of one voxel along an axis.
Their maps fill vectors of 16, or do not. Some edges take tiles of their own. Every activation
occurs.
"""

from __future__ import annotations

import pytest

from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Activation, Conv

CASES: list[tuple[int, Shape5, Vec3, int, Activation]] = [
    (8, Shape5(1, 1, 8, 8, 8), Vec3(3, 3, 3), 1, "identity"),
    (8, Shape5(2, 3, 11, 9, 13), Vec3(3, 2, 4), 5, "relu"),
    (8, Shape5(2, 3, 11, 9, 13), Vec3(3, 2, 4), 24, "relu"),
    (8, Shape5(3, 17, 7, 9, 5), Vec3(2, 4, 3), 33, "leaky_relu"),
    (8, Shape5(3, 24, 7, 9, 5), Vec3(2, 4, 3), 33, "leaky_relu"),
    (12, Shape5(2, 5, 7, 13, 25), Vec3(1, 5, 2), 3, "sigmoid"),
    (12, Shape5(1, 4, 3, 4, 21), Vec3(1, 1, 6), 7, "relu"),
    (16, Shape5(1, 2, 9, 27, 21), Vec3(5, 4, 1), 18, "elu"),
    (20, Shape5(1, 7, 19, 35, 18), Vec3(4, 5, 6), 17, "softmax"),
    (24, Shape5(1, 3, 24, 13, 22), Vec3(9, 1, 7), 20, "tanh"),
    (24, Shape5(1, 3, 24, 13, 22), Vec3(9, 1, 7), 80, "tanh"),
    (32, Shape5(1, 2, 29, 27, 31), Vec3(9, 8, 7), 2, "identity"),
]

tiled_convolutions = pytest.mark.parametrize(
    ("tile", "layer", "shape"),
    [
        (tile, Conv("layer", shape.f, out_features, kernel, activation), shape)
        for tile, shape, kernel, out_features, activation in CASES
    ],
)
