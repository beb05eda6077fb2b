"""Waiting for a state, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds


def until(reached: Callable[[], object]) -> None:
    """Wait until something is reached. A failure tells what never was."""
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, "it was not reached"
        time.sleep(0.01)
