"""Mirrored windows on a GPU: it makes the same copies of windows as the host, from fewer values.

NumPy takes the place of the GPU's kernel. It checks that strides and extents are those of arrays.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_networks import network, volume

from znni.core.shapes import Box, Shape5, Vec3
from znni.engine.backends.cuda import mirrored_windows
from znni.engine.backends.cuda.mirrored_windows import MirroredWindows
from znni.engine.block import alone
from znni.engine.windows import WindowInputs
from znni.network.geometry import cut_for_gpu, over
from znni.network.window import Window


def place_window(_grid: object, _threads: object, arguments: tuple[Any, ...]) -> None:
    copy, *copy_strides, window, f, z, y, x, images, maps, size_z, size_y, size_x = arguments
    assert list(copy_strides) == [stride // 4 for stride in copy.strides[:-1]]
    assert (f, z, y, x) == tuple(stride // 4 for stride in window.strides)
    assert copy.strides[-1] == 4
    assert (images, maps, size_z, size_y, size_x) == (1, *copy.shape) == (1, *window.shape)
    copy[...] = window


@pytest.fixture(autouse=True)
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(get_function={"place_window": place_window}.__getitem__)
    monkeypatch.setattr(mirrored_windows, "cupy", lambda: np)
    monkeypatch.setattr(mirrored_windows, "compiled", lambda _source: module)
    monkeypatch.setattr(mirrored_windows, "pinned", lambda shape: np.full(shape, np.nan, "f4"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_gpu_makes_the_copies_that_the_host_makes(data: st.DataObject) -> None:
    draw = data.draw
    even = st.integers(2, 4).map(lambda half: 2 * half)
    together, mirror = (
        draw(st.sampled_from([2, 3, 4, 8, 16])),
        draw(st.sampled_from(["x", "zy", "zyx"])),
    )
    size = Vec3(*(draw(st.integers(2, 14)) for _ in "zyx"))
    window = Window(
        Vec3(draw(even), draw(even), draw(even)), mirror=mirror, together=together, volume=size
    )
    net = over(network(window), window.size)
    assert net.window is not None
    if not net.window.mirrored_by_gpu:
        return
    whole, x = net.window.seen(), volume(size)
    values = np.zeros((2, *whole.size), np.float32)
    values[:, *Box(Vec3(0, 0, 0), size).shifted(Vec3(0, 0, 0) - whole.start).slices] = x
    block = alone(values, whole.start)
    on_host, on_gpu = WindowInputs(net, size), MirroredWindows(net, size, 2)
    for group in net.window.groups(whole):
        cut = on_gpu(block, group)
        assert cut.values.shape[1:] == cut_for_gpu(net)[1:]
        assert len(cut.values) <= cut_for_gpu(net).n < together
        copies = on_gpu.copies(cut.values, group)
        np.testing.assert_array_equal(copies, on_host(block, group).values)
        assert np.abs(copies).max() > 0


@pytest.mark.parametrize(
    ("mirror", "together", "cut"),
    [
        ("", 4, 4), ("x", 1, 1), ("zyx", 1, 1), ("zyx", 2, 1), ("zyx", 8, 1), ("zyx", 16, 2),
        ("zyx", 3, 2), ("x", 3, 2), ("zy", 16, 4),
    ],
)  # fmt: skip
def test_windows_that_are_cut_for_a_group(mirror: str, together: int, cut: int) -> None:
    window = Window(Vec3(4, 6, 8), 0.5, mirror=mirror, together=together, volume=Vec3(20, 20, 20))
    assert window.cut_for_gpu == cut
    assert window.mirrored_by_gpu == (cut < together)
    most = max(len({copy.start for copy in group}) for group in window.groups(window.covered))
    assert most <= cut
    assert cut_for_gpu(network(window)) == Shape5(cut, 2, 4, 6, 8)
