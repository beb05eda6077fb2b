"""Resampling on a GPU gives what the host gives: on an emulated one, and on a real one."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import ORDERS, emulated_gpu, needs_emulation
from gpu_layers import needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_resources import resource_usage
from resampling_cases import boxes, resamplings

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.machine.cuda import cupy
from znni.resampling.box_resampling import resample
from znni.resampling.gpu import DeviceResampling, source

MAPS = 5
ACCURACY = 1e-6
LARGE = Resampling(Vec3(61, 67, 71), Vec3(90, 100, 110), (1, 1, 1))


def compare(resampling: Resampling, box: Box) -> None:
    """Compare values of a box with those of the host."""
    numbers = np.random.default_rng(0)
    whole = numbers.standard_normal((MAPS, *resampling.source), dtype=np.float32)
    needed = resampling.source_box(box)
    part = np.ascontiguousarray(whole[:, *needed.slices])
    there, on_gpu = cupy().asarray(part), DeviceResampling(resampling)
    found = on_gpu.resample(there, needed.start, box).get()
    wanted = resample(part, needed.start, resampling, box, threads=1)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ACCURACY * np.abs(wanted).max())


@needs_emulation
@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=20)
@given(resamplings((0, 1), 12), st.data())
def test_an_emulated_gpu(order: object, resampling: Resampling, data: st.DataObject) -> None:
    with emulated_gpu(order):
        compare(resampling, data.draw(boxes(resampling.target)))


@needs_emulation
def test_a_target_that_does_not_need_the_first_samples() -> None:
    resampling = Resampling(Vec3(9, 10, 15), Vec3(3, 2, 3), (0, 1, 0))
    with emulated_gpu():
        compare(resampling, Box(Vec3(1, 0, 1), Vec3(3, 2, 3)))


@needs_compiler
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_kernels_keep_their_values_in_registers(architecture: str) -> None:
    usage = resource_usage(source(), architecture)
    assert set(usage) == {"resample"}
    for kernel in usage.values():
        assert kernel.spills == 0
        assert kernel.registers <= 128  # two blocks of 256 threads at least


@pytest.mark.gpu
@pytest.mark.parametrize(
    "box",
    [Box(Vec3(0, 0, 0), LARGE.target), Box(Vec3(10, 33, 7), Vec3(80, 100, 110))],
    ids=["whole", "part"],
)
@pytest.mark.parametrize("orders", [(1, 1, 1), (0, 1, 1), (0, 0, 0)])
def test_a_gpu(box: Box, orders: tuple[int, int, int]) -> None:
    compare(Resampling(LARGE.source, LARGE.target, orders), box)
