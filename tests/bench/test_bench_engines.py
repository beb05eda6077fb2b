"""Divisions of batches among cuDNN's engines, from measured times: equal to trying all."""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.paper.engines import (
    DIVISIONS,
    MIB,
    MORE,
    NETWORKS,
    POWERS,
    WHOLE,
    Curve,
    Engine,
    least_seconds,
    rows_of,
    shared_seconds,
    sizes_of,
)

BATCH = 8
ENGINES = st.lists(
    st.builds(Engine, st.floats(0.5, 9.0), st.integers(0, 6).map(lambda mib: mib * MIB)),
    min_size=1,
    max_size=3,
).map(lambda engines: [*engines, Engine(20.0, 0)])  # one needs no workspace
CURVES = st.fixed_dictionaries(dict.fromkeys(sizes_of(BATCH, MORE), ENGINES))


def tried(curve: Curve, limit: int, sizes: list[int]) -> float:
    """Return the least seconds of all ways to divide the batch."""
    least = {
        size: min((it.seconds for it in curve[size] if it.workspace <= limit), default=inf)
        for size in sizes
    }
    ways = (
        way
        for count in range(1, BATCH + 1)
        for way in combinations_with_replacement(sizes, count)
        if sum(way) == BATCH
    )
    return min(sum(least[size] for size in way) for way in ways)


@given(CURVES, st.integers(0, 6))
def test_a_division_is_the_fastest_of_all(curve: Curve, mib: int) -> None:
    for division in DIVISIONS:
        found = least_seconds(curve, BATCH, mib * MIB, division)
        assert found == pytest.approx(tried(curve, mib * MIB, sizes_of(BATCH, division)))


@settings(max_examples=25)
@given(st.lists(CURVES, min_size=1, max_size=3), st.integers(0, 12), st.data())
def test_shared_workspace_is_the_fastest_of_all(
    curves: list[Curve], mib: int, data: st.DataObject
) -> None:
    times = [data.draw(st.integers(1, 3)) for _ in curves]
    limits = range(0, 7 * MIB, MIB)
    wanted = min(
        sum(
            n * least_seconds(it, BATCH, one, POWERS)
            for n, it, one in zip(times, curves, way, strict=True)
        )
        for way in product(limits, repeat=len(curves))
        if sum(n * one for n, one in zip(times, way, strict=True)) <= mib * MIB
    )
    assert shared_seconds(curves, times, BATCH, mib * MIB, POWERS) == pytest.approx(wanted)


def test_rows_of_a_network_gain_by_pieces_and_by_sharing() -> None:
    (_, planes) = NETWORKS["AlexNet"]
    fast = {size: [Engine(0.1 * size, size * MIB), Engine(0.2 * size, 0)] for size in (1, 2, 4, 8)}
    rows = list(rows_of("AlexNet", BATCH, planes, [fast] * 4, [2 * MIB]))
    gains = {row["name"]: row["gain"] for row in rows}
    assert gains[f"{WHOLE}, each its own"] == 1
    assert gains[f"{WHOLE}, shared out"] == pytest.approx(8 / 7)
    assert gains[f"{POWERS}, each its own"] == pytest.approx(2)
    assert gains[f"{POWERS}, shared out"] == pytest.approx(2)
