"""Corrections of the built-in model by measurements: as in the textbook, robust, and honest."""

from __future__ import annotations

from itertools import pairwise
from math import exp, isfinite, log, sqrt

import numpy as np
import pytest
from blas_threads import blas_threads
from hypothesis import given
from hypothesis import strategies as st

from znni.calibration.features import AXES, Numbers
from znni.calibration.regression import (
    CALL,
    KIND,
    KIND_NEARBY,
    NOISE,
    OWN,
    OWN_NEARBY,
    PRIOR,
    REACH,
    REPEATED,
    Prediction,
    Regression,
)

NAMES = ["tile_8", "tile_16", "tile_24"]
NOWHERE = np.empty((0, AXES))

seeds = st.integers(0, 2**32 - 1)


def covariance(first: tuple[str, Numbers], second: tuple[str, Numbers]) -> float:
    """Return the covariance of the logarithms of two calls, term by term."""
    apart = float(np.linalg.norm(first[1] - second[1]))
    near = exp(-((apart / REACH) ** 2) / 2)
    found = KIND**2 + KIND_NEARBY**2 * near
    if first[0] == second[0]:
        found += OWN**2 + OWN_NEARBY**2 * near + (CALL**2 if apart == 0 else 0)
    return found


def covariances(calls: list[tuple[str, Numbers]]) -> Numbers:
    return np.array([[covariance(one, other) for other in calls] for one in calls])


def drawn(generator: np.random.Generator, count: int) -> tuple[list[str], Numbers, Numbers]:
    """Calls of three primitives, and logarithms drawn from the model's own distribution."""
    names = [NAMES[index] for index in generator.integers(0, len(NAMES), count)]
    places = generator.uniform(0, 6, (count, AXES))
    expected = covariances(list(zip(names, places, strict=True))) + NOISE**2 * np.eye(count)
    return names, places, np.linalg.cholesky(expected) @ generator.standard_normal(count)


def predicted(regression: Regression, name: str, place: Numbers) -> Prediction:
    """Predict a call of one primitive."""
    (found,) = regression.predict([name], tuple(place))
    return found


def test_without_measurements_the_built_in_model_stays_as_it_is() -> None:
    found = predicted(Regression([], NOWHERE, np.empty(0)), "tile_8", np.zeros(AXES))
    assert found.mean == 0
    assert found.error == pytest.approx(sqrt(PRIOR + NOISE**2))


@given(seeds)
def test_predictions_are_those_of_the_textbook(seed: int) -> None:
    """Rasmussen and Williams, equations 2.25 and 2.26, and predictions of each from the others."""
    generator = np.random.default_rng(seed)
    names, places, logarithms = drawn(generator, 12)
    logarithms *= 0.1  # no outliers
    calls = list(zip(names, places, strict=True))
    asked = (NAMES[0], generator.uniform(0, 6, AXES))
    noisy = covariances(calls) + NOISE**2 * np.eye(12)
    with_asked = np.array([covariance(asked, call) for call in calls])
    found = predicted(Regression(names, places, logarithms), *asked)
    assert found.mean == pytest.approx(with_asked @ np.linalg.solve(noisy, logarithms))
    left = PRIOR - with_asked @ np.linalg.solve(noisy, with_asked)
    assert found.error == pytest.approx(sqrt(left + NOISE**2))
    regression, others = Regression(names, places, logarithms), slice(1, None)
    without = Regression(names[others], places[others], logarithms[others])
    miss = logarithms[0] - predicted(without, *calls[0]).mean
    assert regression.misses[0] == pytest.approx(miss)
    assert regression.of(names[0])[0] == pytest.approx(miss)


def test_errors_are_as_large_as_they_are_said_to_be() -> None:
    off = []
    for seed in range(20):
        names, places, logarithms = drawn(np.random.default_rng(seed), 60)
        regression = Regression(names[:40], places[:40], logarithms[:40])
        for name, place, logarithm in zip(names[40:], places[40:], logarithms[40:], strict=True):
            found = predicted(regression, name, place)
            off.append((logarithm - found.mean) / found.error)
    assert 0.85 < np.sqrt(np.mean(np.square(off))) < 1.15


def test_a_measurement_that_was_disturbed_hardly_counts() -> None:
    names, places, logarithms = drawn(np.random.default_rng(0), 24)
    undisturbed = Regression(names, places, logarithms)
    logarithms[5] += log(3)
    disturbed = Regression(names, places, logarithms)
    for name, place in zip(names, places, strict=True):
        before, now = (predicted(found, name, place).mean for found in (undisturbed, disturbed))
        assert abs(now - before) < 0.1
    assert disturbed.misses[5] > 0.8


def test_a_call_that_was_measured_repeatedly_counts_however_far_off_it_is() -> None:
    names, places, logarithms = drawn(np.random.default_rng(0), 24)
    logarithms[5] += log(3)
    times = [1] * 24
    expected = [logarithms[5] - log(3), logarithms[5]]
    for repeats, near in ((REPEATED - 1, expected[0]), (REPEATED, expected[1])):
        times[5] = repeats
        found = predicted(Regression(names, places, logarithms, times), names[5], places[5])
        assert abs(found.mean - near) < 0.35


def test_a_primitive_that_is_slower_than_its_kind_is_found_out() -> None:
    """Four slow calls show half of the difference, most of it as the primitive's own."""
    generator = np.random.default_rng(1)
    names = ["tile_8"] * 4 + ["tile_16"] * 4 + ["tile_24"] * 4
    places = generator.uniform(0, 6, (12, AXES))
    regression = Regression(names, places, np.array([0.5] * 4 + [0.0] * 8))
    elsewhere = generator.uniform(0, 6, AXES)
    slow, fast, new = regression.predict(["tile_8", "tile_16", "tile_32"], tuple(elsewhere))
    assert 0.2 < slow.mean < 0.5
    assert fast.mean < new.mean < slow.mean
    assert fast.mean < slow.mean / 2
    assert new.error > fast.error


def test_what_was_measured_tells_most_of_itself_and_less_the_farther_away() -> None:
    place, away = np.full(AXES, 3.0), np.eye(AXES)[0]
    regression = Regression(["tile_8"], place[np.newaxis], np.array([0.2]))
    found = [predicted(regression, "tile_8", place + far * away) for far in (0, 1, 3, 9)]
    for nearer, farther in pairwise(found):
        assert 0 < farther.mean < nearer.mean < 0.2
        assert NOISE < nearer.error < farther.error < sqrt(PRIOR + NOISE**2)


@st.composite
def anything(draw: st.DrawFn) -> tuple[list[str], Numbers, Numbers]:
    """Measurements that no machine would give, some of them at the same place."""
    count = draw(st.integers(0, 12))
    coordinates = st.lists(st.integers(0, 3), min_size=AXES, max_size=AXES)
    places = np.array([draw(coordinates) for _ in range(count)], float).reshape(count, AXES)
    logarithms = st.lists(st.floats(-20, 20), min_size=count, max_size=count)
    return [draw(st.sampled_from(NAMES)) for _ in range(count)], places, np.array(draw(logarithms))


@given(anything(), st.sampled_from(NAMES), st.floats(0, 40))
def test_no_error_is_less_than_the_noise_and_all_is_finite(
    measured: tuple[list[str], Numbers, Numbers], name: str, where: float
) -> None:
    regression = Regression(*measured)
    found = predicted(regression, name, np.full(AXES, where))
    assert isfinite(found.mean)
    assert NOISE <= found.error <= sqrt(PRIOR + NOISE**2) + 1e-9
    assert all(map(isfinite, regression.misses))


class NotedThreads:
    """A matrix that notes how many threads BLAS has when it is multiplied."""

    __array_ufunc__ = None  # so that an array leaves the product to it

    def __init__(self, matrix: Numbers, noted: list[int]) -> None:
        self._matrix = matrix
        self._noted = noted

    def __rmatmul__(self, left: Numbers) -> Numbers:
        self._noted += blas_threads()
        return np.asarray(left @ self._matrix)


@pytest.mark.usefixtures("several_blas_threads")
def test_matrices_are_too_small_for_threads_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for the next product are busy. So they would fill all cores of a search."""
    noted, inv = list[int](), np.linalg.inv

    def inverse(matrix: Numbers) -> Numbers:
        noted.extend(blas_threads())
        return np.asarray(inv(matrix))

    monkeypatch.setattr(np.linalg, "inv", inverse)
    before = blas_threads()
    regression = Regression(*drawn(np.random.default_rng(0), 40))
    found = predicted(regression, "tile_8", np.zeros(AXES))
    assert noted
    assert set(noted) == {1}
    monkeypatch.setattr(regression, "_inverse", NotedThreads(regression._inverse, noted))
    count = len(noted)
    assert predicted(regression, "tile_8", np.zeros(AXES)) == found
    assert set(noted[count:]) == {1}
    assert blas_threads() == before
