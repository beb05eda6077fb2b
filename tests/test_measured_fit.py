"""Fits to measurements: exact where they can be, never absurd, and honest about their error."""

from __future__ import annotations

from math import exp, isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from znni.calibration.features import BUILT_IN_WEIGHTS, Numbers
from znni.calibration.fit import LEAST_MEASUREMENTS, REACH, Fit, fitted_weights

seeds = st.integers(0, 2**32 - 1)


def calls(generator: np.random.Generator, count: int) -> tuple[Numbers, Numbers]:
    """Terms and places of calls of all kinds, from milliseconds to seconds."""
    longer = 10 ** generator.uniform(-3, 0, count)
    shorter = longer * generator.uniform(0, 1, count)
    places = generator.uniform(0, 6, (count, 6))
    items = 2.0 ** generator.integers(0, 7, count)
    return np.column_stack([np.ones(count), items, longer, shorter]), places


@given(seeds, st.floats(0, 2e-3), st.floats(0, 2e-3), st.floats(0.3, 3), st.floats(0, 3))
def test_times_that_are_sums_of_the_terms_are_found_again(
    seed: int, call: float, item: float, longer: float, shorter: float
) -> None:
    weights = np.array([call, item, longer, shorter])
    generator = np.random.default_rng(seed)
    terms, places = calls(generator, 30)
    fit = Fit.to(terms, places, terms @ weights)
    assert fit.error < 0.03
    others, elsewhere = calls(generator, 10)
    for row, place in zip(others, elsewhere, strict=True):
        assert fit.estimate(row, place).seconds == pytest.approx(row @ weights, rel=0.06)


@given(seeds)
def test_times_as_the_built_in_model_has_them_give_its_weights(seed: int) -> None:
    terms, _ = calls(np.random.default_rng(seed), 12)
    found = fitted_weights(terms, terms @ BUILT_IN_WEIGHTS)
    np.testing.assert_allclose(found, BUILT_IN_WEIGHTS, rtol=1e-3, atol=1e-8)


def test_what_measurements_leave_open_is_as_in_the_built_in_model() -> None:
    """Where traffic is a fixed share of arithmetic, only the sum of both can be known."""
    longer = np.linspace(0.1, 1, 8)
    terms = np.column_stack([np.ones(8), np.arange(1, 9), longer, longer / 5])
    seconds = 4.4 * (terms @ BUILT_IN_WEIGHTS)
    np.testing.assert_allclose(fitted_weights(terms, seconds), 4.4 * BUILT_IN_WEIGHTS, 1e-3, 1e-9)
    _, _, of_longer, of_shorter = fitted_weights(terms, seconds + 2.0 * longer)
    assert of_longer + of_shorter / 5 == pytest.approx(4.4 * 1.1 + 2.0, rel=1e-3)
    scale = (4.4 * 1.1 + 2.0) / 1.1
    assert of_longer == pytest.approx(scale, rel=1e-2)
    assert of_shorter == pytest.approx(scale / 2, rel=1e-2)


def test_measurements_that_the_terms_do_not_explain_leave_weights_near_the_built_in_ones() -> None:
    """Few of them, off by half or double at random, are no reason for a term not to count."""
    generator = np.random.default_rng(3)
    found, free = [], []
    for _ in range(40):
        terms, _ = calls(generator, 6)
        seconds = np.exp(0.5 * generator.standard_normal(6)) * (terms @ BUILT_IN_WEIGHTS)
        found.append(fitted_weights(terms, seconds)[3])
        free.append(nnls(terms / seconds[:, np.newaxis], np.ones(6))[0][3])
    assert np.mean(np.array(free) == 0) > 0.2
    assert np.mean(np.array(found) == 0) < 0.1
    assert np.median(found) == pytest.approx(BUILT_IN_WEIGHTS[3], rel=0.3)


@st.composite
def anything(draw: st.DrawFn) -> tuple[Numbers, Numbers, Numbers]:
    """Measurements that no machine would give, several of the same place among them."""
    count = draw(st.integers(LEAST_MEASUREMENTS, 12))
    amounts = st.one_of(st.just(0.0), st.floats(1e-9, 1e3))
    rows = st.lists(amounts, min_size=count, max_size=count)
    items = st.lists(st.integers(1, 600), min_size=count, max_size=count)
    terms = np.column_stack([np.ones(count), draw(items), draw(rows), draw(rows)])
    coordinates = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    places = np.column_stack([draw(coordinates) for _ in range(6)]).astype(float)
    times = st.lists(st.floats(1e-6, 1e4), min_size=count, max_size=count)
    return terms, places, np.array(draw(times))


@given(anything(), st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 40))
def test_no_time_and_no_error_is_negative_or_not_a_number(
    measured: tuple[Numbers, Numbers, Numbers], longer: float, shorter: float, where: float
) -> None:
    fit = Fit.to(*measured)
    assert (fit.curve.weights >= 0).all()
    seconds, error = fit.estimate(np.array([1.0, 8.0, longer, shorter]), np.full(6, where))
    assert seconds > 0
    assert error >= 0
    assert isfinite(seconds)
    assert isfinite(error)


@given(seeds, st.sampled_from([0.05, 0.2]))
def test_the_error_is_that_of_what_was_not_measured(seed: int, noise: float) -> None:
    generator = np.random.default_rng(seed)
    terms, places = calls(generator, 200)
    seconds = terms @ BUILT_IN_WEIGHTS * np.exp(noise * generator.standard_normal(200))
    fit = Fit.to(terms[:60], places[:60], seconds[:60])
    assert noise / 2 < fit.error < 2 * noise
    predicted = [
        fit.estimate(row, place).seconds for row, place in zip(terms[60:], places[60:], strict=True)
    ]
    misses = np.log(predicted / seconds[60:])
    assert np.sqrt(np.mean(misses**2)) < 2 * fit.error


def test_what_was_measured_nearby_corrects_the_sum() -> None:
    """Calls in one corner take twice as long: there, and only there, others do too."""
    generator = np.random.default_rng(1)
    terms, places = calls(generator, 60)
    places[:12] = generator.uniform(20, 21, (12, 6))
    slow = np.where(np.arange(60) < 12, 2.0, 1.0)
    fit = Fit.to(terms, places, slow * (terms @ BUILT_IN_WEIGHTS))
    one = terms[30]
    ratio = fit.estimate(one, np.full(6, 20.5)).seconds / fit.estimate(one, np.full(6, 3)).seconds
    assert 1.7 < ratio < 2.1
    far = fit.estimate(one, np.full(6, 1000.0)).seconds
    assert far == pytest.approx(one @ fit.curve.weights, rel=1e-3)
    halfway = np.full(6, 20.5 + REACH / np.sqrt(6))
    corrected = fit.estimate(one, halfway).seconds / (one @ fit.curve.weights)
    assert 1 < corrected < exp(fit.curve.corrections[:12].max())


def test_the_error_grows_with_the_distance_from_all_that_was_measured() -> None:
    generator = np.random.default_rng(2)
    terms, places = calls(generator, 40)
    seconds = terms @ BUILT_IN_WEIGHTS * generator.uniform(0.8, 1.25, 40)
    fit = Fit.to(terms, places, seconds)
    assert fit.estimate(terms[0], places[0]).error == fit.error
    apart = np.sqrt(6) * 100
    far = places.max(axis=0)
    estimate = fit.estimate(terms[0], far + 100)
    assert estimate.error == pytest.approx(fit.error * apart / fit.spacing, rel=0.1)
