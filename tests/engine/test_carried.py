"""Copies of the planes that a sweep carries, by a kernel that the host runs."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import ORDERS, emulated_gpu, needs_emulation

from znni.engine.backends.cuda.carried import PlaneCopies
from znni.machine.cuda import cupy


@needs_emulation
@pytest.mark.parametrize("shape", [(2, 3, 4, 21, 31), (1, 1, 1, 2, 3), (3, 2, 2, 32, 64)])
def test_planes_are_copied_out_of_an_array_and_back(shape: tuple[int, ...]) -> None:
    n, maps, planes, *rest = shape
    values = np.random.default_rng(0).standard_normal((n, maps, planes + 5, *rest), np.float32)
    with emulated_gpu(ORDERS[1]):
        array, carried = cupy().asarray(values), cupy().empty(shape, np.float32)
        copy = PlaneCopies()
        copy(array[:, :, -planes:], carried)
        np.testing.assert_array_equal(carried.get(), values[:, :, -planes:])
        copy(carried, array[:, :, :planes])
        values[:, :, :planes] = values[:, :, -planes:]
        np.testing.assert_array_equal(array.get(), values)
