"""Instance and group norm: the same bytes with any number of threads, and exact sums."""

from __future__ import annotations

import numpy as np
import pytest

from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_host
from znni.network.layers import Normalize
from znni.network.weights import ConvWeights, Float32
from znni.primitives.cpu.normalization.primitive import primitives

SIZE = Vec3(9, 40, 37)


def normalized(x: Float32, groups: int, threads: int) -> Float32:
    maps = x.shape[1]
    norm = Normalize("norm", maps, groups, activation="leaky_relu", slope=0.1)
    generator = np.random.default_rng(1)
    weights = ConvWeights(*generator.standard_normal((2, maps), np.float32))
    (primitive,) = primitives(detect_host(threads=threads).host)
    return primitive.build(norm, Shape5(*x.shape), weights)(x)


@pytest.mark.parametrize("groups", [1, 3, 12])
def test_the_bytes_do_not_depend_on_the_threads(groups: int) -> None:
    # Some workers take whole groups, and others planes.
    x = np.random.default_rng(0).standard_normal((3, 12, *SIZE), np.float32)
    first, *others = (normalized(x, groups, threads) for threads in (1, 2, 5, 16))
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_a_large_mean_costs_no_digits() -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, *SIZE), np.float32) + np.float32(1000)
    wide = x.astype(np.float64)
    mean, var = wide.mean(axis=(2, 3, 4)), wide.var(axis=(2, 3, 4))
    factor, shift = np.random.default_rng(1).standard_normal((2, 8), np.float32)
    each = (..., None, None, None)
    right = (wide - mean[each]) / np.sqrt(var[each] + 1e-5) * factor[each] + shift[each]
    right = np.where(right > 0, right, 0.1 * right)
    # The last digit of 1000 is 6e-5.
    np.testing.assert_allclose(normalized(x, 8, 2), right, rtol=0, atol=5e-4)
