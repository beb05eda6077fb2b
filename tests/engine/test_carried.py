"""Copies of the planes that a sweep carries, by a kernel that the host runs."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import ORDERS, emulated_gpu, needs_emulation

from znni.core.shapes import AXES, Axis, Box, Shape5, Vec3, extended
from znni.engine.backends.cuda.carried import PlaneCopies
from znni.machine.cuda import cupy


@needs_emulation
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("shape", [(2, 3, 4, 21, 31), (1, 1, 1, 2, 3), (3, 2, 2, 32, 64)])
def test_planes_are_copied_out_of_an_array_and_back(shape: tuple[int, ...], axis: Axis) -> None:
    kept = Shape5(*shape)
    whole = extended(kept, axis, 5)
    first = Box(Vec3(0, 0, 0), kept.size)
    last = first.shifted(whole.size - kept.size)
    values = np.random.default_rng(0).standard_normal(whole, np.float32)
    with emulated_gpu(ORDERS[1]):
        array, carried = cupy().asarray(values), cupy().empty(kept, np.float32)
        copy = PlaneCopies(axis)
        copy(array[:, :, *last.slices], carried)
        np.testing.assert_array_equal(carried.get(), values[:, :, *last.slices])
        copy(carried, array[:, :, *first.slices])
        values[:, :, *first.slices] = values[:, :, *last.slices]
        np.testing.assert_array_equal(array.get(), values)
