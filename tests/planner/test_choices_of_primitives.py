"""Primitives for the steps of a plan: the best choice under a memory limit."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
from planner_cases import CONV, by_brute_force

from planner.choices import Slot, fastest_within, least_memory
from znni.core.shapes import Shape5
from znni.plans.cost import Cost, Memory
from znni.plans.segments import Step


def step(seconds: float, resident: int, working: int) -> Step:
    cost = Cost(1.0, 1.0, Memory(resident, working, working), 1.0)
    return Step(CONV, "any", Shape5(1, 1, 3, 3, 3), Shape5(1, 2, 1, 1, 1), cost, seconds, 0.1)


@st.composite
def slots(draw: st.DrawFn) -> list[Slot]:
    numbers = st.integers(0, 6)
    made = []
    for _ in range(draw(st.integers(1, 4))):
        options = draw(st.lists(st.tuples(st.integers(1, 6), numbers, numbers), min_size=1))
        steps = sorted((step(float(s), r, w) for s, r, w in options), key=lambda s: s.seconds)
        made.append(Slot(tuple(steps), draw(st.integers(1, 3)), draw(numbers)))
    return made


@given(slots(), st.integers(0, 25))
def test_choice_of_primitives_is_the_optimum(choices: list[Slot], allowed: int) -> None:
    found = fastest_within(choices, allowed, inf)
    assert (found.seconds if found else inf) == by_brute_force(choices, allowed)
    if found:
        assert found.resident + found.peak <= allowed
        assert fastest_within(choices, allowed, found.seconds) is None


@given(slots())
def test_least_memory_is_the_least(choices: list[Slot]) -> None:
    least = least_memory(choices)
    needed = least.resident + least.peak
    assert by_brute_force(choices, needed) < inf
    assert by_brute_force(choices, needed - 1) == inf
