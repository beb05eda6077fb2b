"""Winograd's convolution: exact transforms, and layers whose workers share batches or not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import assert_accurate, random_case

from znni.core.shapes import Shape5, Vec3
from znni.machine.arrays import peak_memory
from znni.machine.detect import detect_host
from znni.network.layers import Conv
from znni.primitives.common.codelets import Codelet
from znni.primitives.cpu.winograd.minimal_filtering import MOST_TAPS, minimal_filtering
from znni.primitives.cpu.winograd.primitive import Winograd
from znni.primitives.cpu.winograd.strips import Strips

HOST = detect_host(threads=2).host


class Exactly:
    """Arithmetic on fractions. The factors of the transforms are floats without rounding."""

    constant = staticmethod(Fraction)

    def add(self, left: Fraction, right: Fraction) -> Fraction:
        """Return the sum."""
        return left + right

    def subtract(self, left: Fraction, right: Fraction) -> Fraction:
        """Return the difference."""
        return left - right

    def scale(self, value: Fraction, factor: float) -> Fraction:
        """Return the product with a number."""
        return value * Fraction(factor)

    def negate(self, value: Fraction) -> Fraction:
        """Return the negative."""
        return -value


def evaluated(codelet: Codelet, values: list[Fraction]) -> list[Fraction]:
    """Return a codelet's outputs."""
    found: dict[int, Fraction] = {}
    codelet.evaluate(Exactly(), values.__getitem__, found.__setitem__)
    return [found[i] for i in range(len(found))]


AXES = [(taps, stride) for stride in (1, 2, 3) for taps in range(stride, stride * MOST_TAPS + 1)]


@pytest.mark.parametrize(("taps", "stride"), AXES)
@settings(max_examples=5)  # both sides are linear in the samples and in the kernel
@given(data=st.data())
def test_products_at_points_are_the_correlation(
    taps: int, stride: int, data: st.DataObject
) -> None:
    axis = minimal_filtering(taps, stride)
    assert axis is not None
    assert axis.values == axis.seen
    numbers = st.integers(-99, 99)
    samples = data.draw(st.lists(numbers, min_size=axis.seen, max_size=axis.seen))
    kernel = data.draw(st.lists(numbers, min_size=taps, max_size=taps))
    seen = evaluated(axis.samples, [Fraction(each) for each in samples])
    # The matrix has thirds, which floats round.
    rows = [
        [Fraction(each).limit_denominator(10**6) for each in row] for row in axis.kernel_matrix()
    ]
    factors = [sum(a * b for a, b in zip(row, kernel, strict=True)) for row in rows]
    products = [Fraction(0)] * axis.length
    for point, a, b in zip(axis.point_of_value, seen, factors, strict=True):
        products[point] += a * b
    found = evaluated(axis.results, products)
    expected = np.correlate(samples, kernel, "valid")[::stride]
    assert found[: axis.outputs] == expected.tolist()


def test_axes_with_an_empty_phase_or_too_many_taps_are_declined() -> None:
    for taps, stride in ((1, 2), (MOST_TAPS + 1, 1), (2 * MOST_TAPS + 1, 2)):
        assert minimal_filtering(taps, stride) is None


def test_a_stride_takes_fewer_multiplications() -> None:
    layer = Conv("conv", 16, 16, Vec3(3, 3, 3), "identity", stride=Vec3(2, 2, 2))
    strips = Strips(layer, Shape5(1, 16, 9, 9, 9), Shape5(1, 16, 4, 4, 4))
    assert strips.values == 9**3
    assert strips.points == 5**3


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("layer", "shape", "own"),
    [
        (Conv("wide", 768, 16, Vec3(3, 3, 3), "identity"), Shape5(1, 768, 10, 10, 10), False),
        (Conv("flat", 20, 40, Vec3(1, 3, 3), "elu"), Shape5(1, 20, 9, 58, 70), True),
        (Conv("large", 16, 16, Vec3(3, 3, 3), "relu"), Shape5(2, 16, 30, 30, 31), True),
        (Conv("even", 3, 5, Vec3(2, 4, 5), "identity"), Shape5(3, 3, 8, 9, 20), False),
        (
            Conv("halving", 64, 40, Vec3(3, 3, 3), "relu", stride=Vec3(2, 2, 2)),
            Shape5(2, 64, 14, 18, 21),
            False,
        ),
        (
            Conv("flat_halving", 16, 20, Vec3(1, 3, 3), "prelu", stride=Vec3(1, 2, 2)),
            Shape5(1, 16, 5, 71, 72),
            True,
        ),
        (
            Conv("uneven", 18, 16, Vec3(3, 4, 7), "elu", stride=Vec3(1, 2, 3)),
            Shape5(1, 18, 9, 20, 31),
            False,
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_layers_are_accurate_whether_workers_share_batches_or_not(
    layer: Conv, shape: Shape5, own: bool
) -> None:
    primitive = Winograd(HOST)
    out = primitive.out_shape(layer, shape)
    assert out is not None
    assert Strips(layer, shape, out).own == own
    case = random_case(layer, shape)
    run = primitive.build(layer, shape, case.weights)
    assert_accurate(primitive, case, run(case.x))


@pytest.mark.slow_cases
@pytest.mark.parametrize(("taps", "stride"), [(3, 2), (10, 2), (8, 3), (15, 3)])
def test_building_takes_no_more_than_is_declared(taps: int, stride: int) -> None:
    layer = Conv("conv", 16, 16, Vec3.of(taps), "identity", stride=Vec3.of(stride))
    shape, primitive = Shape5(1, 16, *Vec3.of(taps + 5 * stride)), Winograd(HOST)
    case = random_case(layer, shape)
    primitive.build(layer, shape, case.weights)  # compiles
    declared = primitive.cost(layer, shape).memory
    with peak_memory() as peak:
        run = primitive.build(layer, shape, case.weights)
    assert peak.added <= declared.resident + declared.workspace
    assert_accurate(primitive, case, run(case.x))


def test_kernels_that_are_too_small_or_large_are_declined() -> None:
    shape = Shape5(1, 4, 20, 20, 20)
    for kernel in (Vec3(1, 1, 1), Vec3(3, 3, 1), Vec3(6, 3, 3)):
        assert Winograd(HOST).out_shape(Conv("conv", 4, 4, kernel, "identity"), shape) is None


def test_strides_beyond_the_kernel_dilations_and_groups_are_declined() -> None:
    shape, three = Shape5(1, 4, 20, 20, 20), Vec3(3, 3, 3)
    given = Conv("conv", 4, 4, three, "identity", stride=Vec3(2, 2, 2))
    assert Winograd(HOST).out_shape(given, shape) is not None
    for other in (
        replace(given, stride=Vec3(1, 4, 1)),
        replace(given, dilation=Vec3(1, 1, 2)),
        replace(given, groups=2),
    ):
        assert Winograd(HOST).out_shape(other, shape) is None
