"""The steps of a case: their progress, and the seconds that each took."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from znni.engine.run_state import Progress

# Called with the name of a step, the voxels done, and all voxels of the step.
StepProgress = Callable[[str, int, int], None]


def no_step_progress(_step: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


class Steps:
    """The seconds of a case's steps, and their progress.

    Attributes:
        seconds: the seconds of each step so far, by its name.
    """

    def __init__(self, progress: StepProgress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self.start()

    def start(self) -> None:
        """Begin a step now."""
        self._begun = perf_counter()

    def done(self, step: str) -> None:
        """End a step, and begin the next one."""
        begun = self._begun
        self.start()
        self.seconds[step] = self.seconds.get(step, 0.0) + self._begun - begun

    def progress_of(self, step: str) -> Progress:
        """Return the progress of a step, called with voxels done and all voxels."""
        return lambda done, total: self._progress(step, done, total)
