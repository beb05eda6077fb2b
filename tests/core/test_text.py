"""Quantities as text."""

from __future__ import annotations

import pytest

from znni.core.text import duration

HOUR = 3600


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (1.24, "1.2 s"),
        (125, "2 min 05 s"),
        (26 * HOUR, "26 h 00 min"),
        (72 * HOUR, "3.0 days"),
        (572892 * HOUR, "65.4 years"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
