"""The turns of runs that follow each other: while one computes, the next one reads its input."""

from __future__ import annotations

from threading import Condition
from typing import Literal, TypeAlias

# What one run at a time does.
Phase: TypeAlias = Literal["reading", "computing", "finishing"]


class Turns:
    """The turns of runs. One run at a time is in each phase. A run is known by its thread.

    Args:
        changed: guards the turns, and is notified when one ends.
    """

    def __init__(self, changed: Condition) -> None:
        self._changed = changed
        self._runs: dict[Phase, int] = {}

    def begin(self, run: int, *phases: Phase) -> None:
        """Wait until no other run is in any of these phases. Then this run is."""
        with self._changed:
            self._changed.wait_for(lambda: all(self._runs.get(it, run) == run for it in phases))
            self._runs |= dict.fromkeys(phases, run)

    def end(self, run: int, *phases: Phase) -> None:
        """End the turns of a run in these phases, if it has them."""
        with self._changed:
            for phase in phases:
                if self._runs.get(phase) == run:
                    del self._runs[phase]
            self._changed.notify_all()
