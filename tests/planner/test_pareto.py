"""The pairs on a Pareto front."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.pareto import Front

NUMBERS = st.integers(0, 6)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=25))
def test_what_one_before_equals_or_beats_is_not_admitted(pairs: list[tuple[int, int]]) -> None:
    front = Front()
    for index, (a, b) in enumerate(pairs):
        assert front.admits(a, b) == (not any(c <= a and d <= b for c, d in pairs[:index]))
