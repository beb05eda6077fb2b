"""Resampling on a GPU gives what the host gives: on an emulated one, and on a real one."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import ORDERS, emulated_gpu, needs_emulation
from gpu_layers import needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from resampling_cases import boxes, resamplings

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.machine.cuda import cupy
from znni.machine.nvrtc import resource_usage
from znni.network.weights import Float32
from znni.resampling.gpu import DeviceResampling, options, source
from znni.resampling.labels import label_largest
from znni.resampling.spline import resample

MAPS = 5
OF_MAPS = np.array([0, 3, 4, 300, 1], np.uint16)
ACCURACY = 1e-6
LARGE = Resampling(Vec3(61, 67, 71), Vec3(90, 100, 110), (1, 1, 1))


def compare(resampling: Resampling, box: Box) -> None:
    """Compare values and labels of a box with those of the host."""
    numbers = np.random.default_rng(0)
    whole = numbers.standard_normal((MAPS, *resampling.source), dtype=np.float32)
    needed = resampling.source_box(box)
    part = np.ascontiguousarray(whole[:, *needed.slices])
    there, on_gpu = cupy().asarray(part), DeviceResampling(resampling)
    found = on_gpu.resample(there, needed.start, box).get()
    wanted = resample(part, needed.start, resampling, box, threads=1)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ACCURACY * np.abs(wanted).max())
    labels = on_gpu.label_largest(there, needed.start, box, cupy().asarray(OF_MAPS)).get()
    assert labels.dtype == OF_MAPS.dtype
    compare_labels(labels, part, needed.start, resampling, box)


def compare_labels(
    labels: np.ndarray, part: Float32, at: Vec3, resampling: Resampling, box: Box
) -> None:
    """Compare labels with those of the host; where they differ, the maps must be nearly equal."""
    wanted = label_largest(part, at, resampling, box, OF_MAPS, threads=1)
    apart = np.nonzero(labels != wanted)
    if apart[0].size:
        maps = resample(part, at, resampling, box, threads=1)[:, *apart]
        largest = np.sort(maps, axis=0)
        assert (largest[-1] - largest[-2]).max() <= ACCURACY * np.abs(maps).max()


@needs_emulation
@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=20)
@given(resamplings((0, 1), 12), st.data())
def test_an_emulated_gpu(order: object, resampling: Resampling, data: st.DataObject) -> None:
    with emulated_gpu(order):
        compare(resampling, data.draw(boxes(resampling.target)))


@needs_emulation
def test_equal_maps_and_nan_on_an_emulated_gpu() -> None:
    resampling = Resampling(Vec3(3, 4, 5), Vec3(5, 7, 9), (1, 1, 1))
    box = Box(Vec3(0, 0, 0), resampling.target)
    values = np.ones((MAPS, *resampling.source), np.float32)
    values[0] = 0
    with emulated_gpu():
        on_gpu, of_maps = DeviceResampling(resampling), cupy().asarray(OF_MAPS)
        for largest in (3, 300):
            found = on_gpu.label_largest(cupy().asarray(values), Vec3(0, 0, 0), box, of_maps).get()
            assert (found == largest).all()
            values[3:] = np.nan


@needs_compiler
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_kernels_keep_their_values_in_registers(architecture: str) -> None:
    usage = resource_usage(source(), architecture, options("uint8"))
    assert set(usage) == {"resample", "label_largest"}
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
