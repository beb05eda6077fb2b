"""The known name that a mistyped one was meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to another one; None if none is near.

    Upper and lower case do not count.

    Args:
        name: the name as given.
        known: the names to choose from.
    """
    given = name.lower()
    by_lower = {each.lower(): each for each in known}
    # Letters in common make names close, wherever they are: n537 is as close to n377 as n337 is.
    close = get_close_matches(given, by_lower, n=len(by_lower) or 1)
    found = min(close, key=lambda each: _changes(given, each), default=None)
    return None if found is None else by_lower[found]


def _changes(one: str, other: str) -> int:
    """Return how many letters must be replaced, added or left out to make one text the other."""
    row = list(range(len(other) + 1))
    for taken, letter in enumerate(one, 1):
        above, row = row, [taken]
        for index, there in enumerate(other):
            replaced = above[index] + (letter != there)
            row.append(min(replaced, above[index + 1] + 1, row[index] + 1))
    return row[-1]
