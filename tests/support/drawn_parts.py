"""Parts of arrays, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st


def drawn_part(data: Any, shape: Sequence[int]) -> tuple[slice, ...]:
    """Draw a part of an array, of one index at least along each axis."""
    ends = [sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2))) for n in shape]
    return tuple(
        slice(a, max(b, a + 1)) if a < n else slice(n - 1, n)
        for (a, b), n in zip(ends, shape, strict=True)
    )
