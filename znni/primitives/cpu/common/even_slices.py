"""A range cut into nearly equal parts, to be shared out over threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise


def even_slices(total: int, count: int) -> Iterator[slice]:
    """At most ``count`` slices, none empty, of lengths that differ by one at most.

    Together they make up ``range(total)``, of a positive ``total``.
    """
    count = min(count, total)
    bounds = (total * i // count for i in range(count + 1))
    return (slice(start, stop) for start, stop in pairwise(bounds))
