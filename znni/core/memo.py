"""Results that are kept as long as the immutable object that they follow from."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial, wraps
from typing import Any, TypeVar, cast
from weakref import ref

Function = TypeVar("Function", bound=Callable[..., Any])

# The most results that are kept for an object. Then all are forgotten.
MOST_RESULTS = 256


class Hashed:
    """A value whose hash is worked out once, because it has many parts.

    Args:
        value: can be hashed.
    """

    def __init__(self, value: Hashable) -> None:
        self._value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self._value == other._value


def memoized(function: Function) -> Function:
    """Decorate a function so that its results for the same object are kept while that lives.

    Objects that are equal are not the same: they may differ in what no comparison sees.

    Args:
        function: depends on its arguments alone. The first is the object, which never changes and
            to which no result refers. Further arguments can be hashed. Nothing is kept for those
            that are given by name.
    """
    kept: dict[int, tuple[ref[Any], dict[Any, Any]]] = {}

    @wraps(function)
    def found(value: Any, *further: Any, **named: Any) -> Any:
        if named:
            return function(value, *further, **named)
        number = id(value)
        entry = kept.get(number)
        if entry is None or entry[0]() is not value:
            entry = kept[number] = ref(value, partial(_forget, kept, number)), {}
        results = entry[1]
        if further in results:
            return results[further]
        made = function(value, *further)
        if len(results) >= MOST_RESULTS:
            entry = kept[number] = entry[0], {}
        entry[1][further] = made
        return made

    return cast("Function", found)


def _forget(kept: dict[int, Any], number: int, gone: ref[Any]) -> None:
    """Drop the results for an object that is gone, unless another has its number now."""
    if kept.get(number, (None,))[0] is gone:
        del kept[number]
