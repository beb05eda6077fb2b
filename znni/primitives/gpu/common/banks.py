"""The turns in which shared memory serves loads: in each, a bank gives one word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from znni.primitives.gpu.common.hardware import BANKS


def turns(loads: Iterable[Iterable[int]]) -> int:
    """Return the turns that loads take one after the other.

    Args:
        loads: the words that a warp reads at a time, for each load. Lanes may share a word.
    """
    return sum(max(Counter(word % BANKS for word in set(words)).values()) for words in loads)


def quickest_pitch(least: int, loads: Callable[[int], Iterable[Iterable[int]]]) -> int:
    """Return the least distance between rows for which loads take the fewest turns.

    Args:
        least: the words of a row.
        loads: returns the loads for a distance in words, as ``turns`` takes them.
    """
    return min(range(least, least + BANKS), key=lambda pitch: turns(loads(pitch)))
