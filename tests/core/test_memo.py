"""Results are kept for an object, and not for an equal one."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from weakref import ref

import pytest

from znni.core.memo import MOST_RESULTS, Hashed, memoized


@dataclass(frozen=True)
class Named:
    number: int
    label: str = field(default="", compare=False)


class Calls:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, value: Named, times: int = 1) -> str:
        self.count += 1
        if times < 0:
            raise ValueError(times)
        return value.label * times


def test_a_result_is_kept_for_the_same_object_and_the_same_arguments() -> None:
    calls = Calls()
    kept = memoized(calls)
    one, equal = Named(1, "a"), Named(1, "b")
    assert one == equal
    for _ in range(3):
        assert kept(one) == "a"
        assert kept(equal) == "b"
        assert kept(one, 2) == "aa"
    assert calls.count == 3
    assert kept(one, times=3) == "aaa"
    with pytest.raises(ValueError, match="-1"):
        kept(one, -1)


def test_few_results_are_kept_for_an_object() -> None:
    calls = Calls()
    kept, value = memoized(calls), Named(1, "a")
    for times in range(MOST_RESULTS + 1):
        assert kept(value, times) == "a" * times
    assert kept(value, MOST_RESULTS) == "a" * MOST_RESULTS
    assert calls.count == MOST_RESULTS + 1
    assert kept(value, 0) == ""
    assert calls.count == MOST_RESULTS + 2


def test_an_object_and_its_results_are_released() -> None:
    calls = Calls()
    kept = memoized(calls)
    for number in range(100):  # objects may have the same place in memory, one after the other
        value = Named(number, str(number))
        assert kept(value) == str(number)
    gone = ref(value)
    del value
    gc.collect()
    assert gone() is None
    assert calls.count == 100


def test_a_value_of_many_parts_is_hashed_once() -> None:
    class Counted(int):
        hashed = 0

        def __hash__(self) -> int:
            Counted.hashed += 1
            return super().__hash__()

    one = Hashed((Counted(1), "a"))
    kept = {one: "value"}
    assert kept[one] == "value"
    assert Counted.hashed == 1
    assert kept[Hashed((1, "a"))] == "value"
    assert Hashed((1, "b")) not in kept
    assert one != (1, "a")
