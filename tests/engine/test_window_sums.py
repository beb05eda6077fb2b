"""Sums of windows on the host and on a GPU: the same voxels, mirrored, kept and divided alike.

NumPy takes the place of the GPU's kernels. It checks that strides and extents are those of arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from znni.core.shapes import Box, Vec3
from znni.engine.backends.cuda import window_sums as device_window_sums
from znni.engine.backends.cuda.window_sums import DeviceWindowSums, WindowMemory
from znni.engine.backends.host.window_sums import WindowSums
from znni.engine.windows import BoxSums
from znni.network.window import Window

MAPS = 3
SIZE, PATCH = Vec3(9, 10, 21), Vec3(6, 8, 8)


def arrays_of(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Yield a kernel's arrays and its other numbers, after a check of the strides."""
    left = list(arguments)
    while left:
        found = left.pop(0)
        yield found
        if isinstance(found, np.ndarray):
            strides = [stride // found.itemsize for stride in found.strides]
            given = [left.pop(0) for _ in strides[:-1]]
            assert given == strides[:-1]
            if strides[-1] != 1:
                assert left.pop(0) == strides[-1]
            elif left and isinstance(left[0], np.int64):
                assert left.pop(0) == 1


def add_window(_grid: object, _threads: object, arguments: tuple[Any, ...]) -> None:
    sums, totals, values, weights, copies, images, *extents = arrays_of(arguments)
    assert (images, *extents) == (1, *values.shape)
    sums += values * weights
    totals += weights * copies


def divide(_grid: object, _threads: object, arguments: tuple[Any, ...]) -> None:
    sums, totals, mean, images, *extents = arrays_of(arguments)
    assert (images, *extents) == (1, *mean.shape)
    mean[...] = np.where(totals == 0, 0, sums / np.where(totals == 0, 1, totals))


def sigmoid(_grid: object, _threads: object, arguments: tuple[Any, ...]) -> None:
    mean, images, *extents = arrays_of(arguments)
    assert (images, *extents) == (1, *mean.shape)
    mean[...] = 1 / (1 + np.exp(-mean))


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {"add_window": add_window, "divide": divide, "sigmoid": sigmoid}
    module = SimpleNamespace(get_function=kernels.__getitem__)
    monkeypatch.setattr(device_window_sums, "cupy", lambda: np)
    monkeypatch.setattr(device_window_sums, "compiled", lambda _source: module)


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("mirror", ["", "x", "zy"])
def test_a_gpu_adds_up_what_the_host_does(mirror: str) -> None:
    window = Window(Vec3(4, 6, 8), 0.5, mirror=mirror, volume=SIZE)
    memory = WindowMemory(window, MAPS, PATCH)
    generator = np.random.default_rng(2)
    starts = [start for start in window.touching(Box(Vec3(0, 0, 0), SIZE)) if start.z]
    made = [
        [generator.standard_normal((MAPS, *window.size), np.float32) for _ in window.flips]
        for _ in starts
    ]

    def sums(box: Box) -> tuple[BoxSums, BoxSums]:
        values = np.empty((MAPS, *box.size), np.float32)
        into = np.empty((MAPS, *box.size), np.float32)
        host = WindowSums(window, box, values, window.importance(), 2)
        return host, DeviceWindowSums(memory, box, into)

    first, beyond = Box(Vec3(2, 1, 8), Vec3(8, 9, 16)), window.tail(PATCH)
    both = sums(Box(first.start, first.stop + Vec3(0, 0, beyond)))
    for start, copies in zip(starts, made, strict=True):
        for axes, output in zip(window.flips, copies, strict=True):
            for each in both:
                each.add(output, start, axes)
    kept = [each.after(first.size.x) for each in both]
    assert_same(*(each.mean(first.size.x) for each in both))
    following = sums(Box(Vec3(2, 1, 16), Vec3(8, 9, 21)))
    for each, before in zip(following, kept, strict=True):
        each.take(before)
    after = [each.mean(5) for each in following]
    assert_same(*after)
    assert np.abs(after[0][..., 0]).max() > 0


def assert_same(host: NDArray[np.float32], device: NDArray[np.float32]) -> None:
    assert np.abs(host).max() > 0.1
    np.testing.assert_allclose(device, host, rtol=0, atol=1e-6)
