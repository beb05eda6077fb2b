"""Primitives for the steps of a plan: the best choice under a memory limit.

The division of memory among layers that hold it at the same time is the workspace division of
micro-cuDNN (Oyama et al., 2018, section III-C), a 0-1 program. Here a library solves it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from planner_cases import by_brute_force
from scipy.optimize import Bounds, LinearConstraint, milp
from slots import slots

from planner.choices import (
    Slot,
    fastest_within,
    least_memory,
    undominated_within,
)


def seconds_of_program(slots: Sequence[Slot], allowed: int) -> float:
    """Return the least time, with a variable for each step of each slot and one for the peak."""
    options = [(index, step) for index, slot in enumerate(slots) for step in slot.options]
    count = len(options)
    seconds = np.array([slots[i].runs * step.seconds for i, step in options] + [0.0])
    one_each = np.zeros((len(slots), count + 1))
    below_peak = np.zeros((len(slots), count + 1))
    together = np.zeros((1, count + 1))
    for column, (index, step) in enumerate(options):
        one_each[index, column] = 1
        below_peak[index, column] = step.cost.memory.working
        together[0, column] = step.cost.memory.resident
    below_peak[:, -1], together[0, -1] = -1, 1
    held = np.array([slot.held for slot in slots])
    found = milp(
        seconds,
        integrality=[1] * count + [0],
        bounds=Bounds([0] * (count + 1), [1] * count + [np.inf]),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(below_peak, -np.inf, -held),
            LinearConstraint(together, -np.inf, allowed),
        ],
    )
    return float(found.fun) if found.success else inf


@given(slots(), st.integers(0, 50))
def test_choice_of_primitives_is_the_optimum(choices: list[Slot], allowed: int) -> None:
    found = fastest_within(choices, allowed, inf)
    seconds = found.seconds if found else inf
    assert seconds == by_brute_force(choices, allowed)
    assert seconds == seconds_of_program(choices, allowed)
    if found:
        assert found.resident + found.peak <= allowed
        assert fastest_within(choices, allowed, found.seconds) is None


@given(
    slots(using_gpu=True),
    st.integers(0, 50),
    st.sampled_from([0.0, 0.25, 2.0]),
    st.integers(1, 100),
)
def test_resident_bytes_that_count_as_seconds_drop_no_choice_that_beats_the_limit(
    choices: list[Slot], allowed: int, byte_seconds: float, limit: int
) -> None:
    def job(seconds: float, resident: int, _: int) -> float:
        return seconds + byte_seconds * resident

    best = by_brute_force(choices, allowed, job)
    found = undominated_within(choices, allowed, limit, byte_seconds)
    seconds = min((job(it.seconds, it.resident, it.peak) for it in found), default=inf)
    assert seconds == (best if best < limit else inf)


@given(slots())
def test_least_memory_is_the_least(choices: list[Slot]) -> None:
    least = least_memory(choices)
    needed = least.resident + least.peak
    assert by_brute_force(choices, needed) < inf
    assert by_brute_force(choices, needed - 1) == inf
