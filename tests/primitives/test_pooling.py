"""What pooling must get right that random numbers would not show."""

from __future__ import annotations

import numpy as np
import pytest
from devices import built
from layers import MACHINE, random_case, random_input

from bench import reference
from znni.core.shapes import Shape5, Vec3, offsets
from znni.machine.cuda import cupy
from znni.network.layers import Pool
from znni.plans.primitive import Primitive
from znni.primitives.catalogue import catalogue

WINDOWS = [Vec3(2, 2, 2), Vec3(3, 3, 3), Vec3(1, 2, 3), Vec3(3, 1, 2), Vec3(1, 1, 1)]


@pytest.fixture(params=["", pytest.param("gpu_", marks=pytest.mark.gpu)], ids=["cpu", "gpu"])
def device(request: pytest.FixtureRequest) -> str:
    """How the names of its primitives begin."""
    return str(request.param)


@pytest.fixture
def plain(device: str) -> Primitive:
    return catalogue(MACHINE)[f"{device}max_pooling"]


@pytest.fixture
def fragments(device: str) -> Primitive:
    return catalogue(MACHINE)[f"{device}max_pooling_fragments"]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_maximum_may_be_negative(plain: Primitive, fragments: Primitive, window: Vec3) -> None:
    layer = Pool("pool", window)
    case = random_case(layer, Shape5.of(1, 2, window * 4 - 1))
    case = case._replace(x=-1 - np.abs(case.x))
    for primitive in (plain, fragments):
        assert case.run(primitive).max() <= -1


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_nan_is_the_maximum_of_its_windows(
    plain: Primitive, fragments: Primitive, window: Vec3
) -> None:
    case = random_case(Pool("pool", window), Shape5.of(1, 1, window * 4 - 1))
    for at in offsets(window):
        case.x[...] = 0
        case.x[0, 0, *at] = np.nan
        assert np.isnan(case.run(plain)).sum() == 1
        reached = (at + 1).minimum(window).volume  # offsets whose windows hold the voxel
        assert np.isnan(case.run(fragments)).sum() == reached


def test_infinities_are_values_like_others(plain: Primitive) -> None:
    x = np.full((1, 1, 4, 4, 4), -np.inf, np.float32)
    x[0, 0, 0, 0, 0] = np.inf
    y = built(plain, Pool("pool", Vec3(2, 2, 2)), Shape5(*x.shape), None)(x)
    assert y[0, 0, 0, 0, 0] == np.inf
    assert (y.ravel()[1:] == -np.inf).all()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_each_fragment_is_the_pooling_of_a_shifted_crop(
    plain: Primitive, fragments: Primitive, window: Vec3
) -> None:
    layer = Pool("pool", window)
    case = random_case(layer, Shape5.of(2, 3, window * 5 - 1))
    all_fragments = case.run(fragments)
    size = case.shape.size - window + 1
    for parent in range(2):
        for index, o in enumerate(offsets(window)):
            crop = case.x[
                parent : parent + 1, :, o.z : o.z + size.z, o.y : o.y + size.y, o.x : o.x + size.x
            ]
            y = built(plain, layer, Shape5(*crop.shape), None)(crop)
            np.testing.assert_array_equal(y[0], all_fragments[parent * window.volume + index])


def test_fragments_of_fragments_interleave_to_the_dense_maximum(fragments: Primitive) -> None:
    """Dense position = o1 + p1 * (o2 + p2 * i): the first pool's offset varies fastest."""
    first, second = Vec3(2, 1, 3), Vec3(3, 2, 2)
    view = first + (second - 1) * first  # field of view of both pools
    x = random_input(Shape5.of(1, 2, first * second * 3 + view - 1))
    y = x
    for window in (first, second):
        y = built(fragments, Pool("pool", window), Shape5(*y.shape), None)(y)
    windows = np.lib.stride_tricks.sliding_window_view(x[0], view, axis=(1, 2, 3))
    dense = windows.max(axis=(4, 5, 6))
    step = first * second
    for a, o1 in enumerate(offsets(first)):
        for b, o2 in enumerate(offsets(second)):
            at = o1 + first * o2
            expected = dense[:, at.z :: step.z, at.y :: step.y, at.x :: step.x]
            np.testing.assert_array_equal(y[a * second.volume + b], expected)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_averages_have_fragments_too(device: str, window: Vec3) -> None:
    case = random_case(Pool("pool", window, "average"), Shape5.of(2, 3, window * 4 - 1))
    found = case.run(catalogue(MACHINE)[f"{device}window_pooling_fragments"])
    expected = reference.pooling_fragments(case.x, case.layer)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(case.x).max())


def test_fragments_decline_sizes_of_which_some_would_be_smaller(fragments: Primitive) -> None:
    layer = Pool("pool", Vec3(2, 3, 2))
    assert fragments.out_shape(layer, Shape5(2, 5, 7, 8, 9)) == Shape5(24, 5, 3, 2, 4)
    for size in (Vec3(8, 8, 9), Vec3(7, 9, 9), Vec3(7, 8, 10)):
        assert fragments.out_shape(layer, Shape5.of(2, 5, size)) is None


def test_plain_pooling_drops_the_remainder(plain: Primitive) -> None:
    layer, shape = Pool("pool", Vec3(2, 3, 2)), Shape5(1, 1, 5, 8, 7)
    assert plain.out_shape(layer, shape) == Shape5(1, 1, 2, 2, 3)
    x = np.zeros(shape, np.float32)
    x[:, :, 4:] = x[:, :, :, 6:] = x[..., 6:] = 1
    assert not built(plain, layer, shape, None)(x).any()


@pytest.mark.gpu
def test_a_gpu_pools_more_values_than_32_bits_count() -> None:
    """Looked at in the last map, behind 2^31 others."""
    fragments = catalogue(MACHINE)["gpu_max_pooling_fragments"]
    layer, shape = Pool("pool", Vec3(2, 2, 2)), Shape5(1, 80, 303, 303, 303)
    assert shape.elements > 2**31
    needed = fragments.cost(layer, shape).memory.working
    if fragments.device.memory < needed:
        pytest.skip(f"needs {needed} bytes of GPU memory")
    x = cupy().zeros(shape, np.float32)
    x[0, -1] = cupy().random.random(shape.size, np.float32) - 2
    y = fragments.build(layer, shape, None)(x)
    for index, at in enumerate(offsets(layer.window)):
        windows = [
            x[0, -1, o.z : o.z + 302 : 2, o.y : o.y + 302 : 2, o.x : o.x + 302 : 2]
            for o in (at + inside for inside in offsets(layer.window))
        ]
        expected = windows[0]
        for other in windows[1:]:
            expected = cupy().maximum(expected, other)
        size = y.shape[2:]
        assert (y[index, -1] == expected[: size[0], : size[1], : size[2]]).all()
    assert not y[:, :-1].any()
