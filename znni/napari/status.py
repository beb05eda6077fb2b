"""The status of a plan or a run, in words."""

from __future__ import annotations

from time import monotonic

from znni.core.text import duration
from znni.napari.task import Progressed

PLANNING, STARTING = "planning", "starting"
COMPILING = "starting: kernels are compiled, once on this machine"
FIRST_BLOCK = "computing the first block"
COMPLETING = "completing the output"  # with its coarser resolutions


class RunStatus:
    """The status of one plan or run.

    Args:
        doing: what is done until the first block begins.
        share: the share of the output that an earlier run has finished.
    """

    def __init__(self, doing: str = STARTING, share: float = 0.0) -> None:
        self._doing = doing
        self._since = monotonic()
        self._is_waiting = True
        self._share = share
        self._has_steps = False
        self._rate = _Rate()
        self.is_computing = False

    def begin(self) -> None:
        """Note that the first block begins."""
        self._doing, self._since = FIRST_BLOCK, monotonic()
        self._is_waiting = self.is_computing = True

    def end(self) -> None:
        """Note that the plan or the run has ended: nothing more is waited for."""
        self._is_waiting = False

    def waiting(self) -> str:
        """Return the words for the time until the first block, or the plan; empty after it."""
        if not self._is_waiting:
            return ""
        seconds = int(monotonic() - self._since)
        so_far = f"{seconds} s" if seconds < 60 else duration(seconds)
        return f"{self._doing}, {so_far} so far" if seconds else self._doing

    def progressed(self, event: Progressed) -> str:
        """Return the words for the progress of a run."""
        # A run that goes on tells first what an earlier run has finished.
        self._is_waiting = not (self.is_computing or event.step)
        self._has_steps = self._has_steps or bool(event.step)
        self._share = event.done / max(1, event.total)
        left = self._rate.left(event)
        step = event.step or (COMPLETING if event.done == event.total else "")
        parts = [f"{self._share:.0%}", step, f"{duration(left)} left" if left else ""]
        return ", ".join(filter(None, parts))

    def cancelled(self) -> str:
        """Return the words for a cancelled run: what stays, and what to do."""
        if self._has_steps:
            return "cancelled: what is finished stays. Press Plan to go on"
        if self._share:
            return f"cancelled: {self._share:.0%} is finished, and stays. Press Plan to go on"
        return "cancelled: no block was finished"


class _Rate:
    """The time that is left, by the rate since the first report of a step.

    A run that goes on begins with many finished voxels, which took it no time.
    """

    def __init__(self) -> None:
        self._step: str | None = None

    def left(self, event: Progressed) -> float:
        """Return the seconds that are left; 0 if they are not known yet."""
        now = monotonic()
        if event.step != self._step:
            self._step, self._first, self._begun = event.step, event.done, now
        done = event.done - self._first
        return (event.total - event.done) * (now - self._begun) / done if done > 0 else 0.0
