"""The progress of a folder of cases: the case and the step that run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING

from znni.cli.progress import Advance, show_progress
from znni.core.text import counted

if TYPE_CHECKING:
    from znni.cases.case_folder import Case


@contextmanager
def show_cases(cases: Sequence[Case], *, hidden: bool = False) -> Iterator[CasesProgress]:
    """Show the progress of cases within a ``with`` block, unless it is to be hidden."""
    with nullcontext(_show_nothing) if hidden else show_progress() as progress:
        yield CasesProgress(progress, cases)


def _show_nothing(_done: int, _total: int, _beside: str = "", /, *, rated: bool = True) -> None:
    """Ignore progress."""


class CasesProgress:
    """Shows the step of one case. Other cases may be prepared or written meanwhile.

    A network takes longest, so its step hides those of other cases. There is no rate, because cases
    that are finished already, or fail, come in bursts.
    """

    def __init__(self, progress: Advance, cases: Sequence[Case]) -> None:
        self._progress = progress
        self._names = {
            case.out: f"{case.out.name} ({number} of {len(cases)})"
            for number, case in enumerate(cases, 1)
        }
        self._computing: list[Case] = []  # those whose networks run
        self._lock = Lock()

    def step(self, case: Case, step: str, done: int, total: int) -> None:
        """Show the step of a case, with the voxels done and all voxels of the step."""
        with self._lock:
            if step == "network" and case not in self._computing:
                self._computing.append(case)
            if not self._computing or (step == "network" and case == self._computing[0]):
                self._progress(done, total, f"{self._names[case.out]}: {step}", rated=False)
            if step == "network" and done >= total:
                self._computing.remove(case)

    def done(self, done: int, total: int) -> None:
        """Note that a case is over, with the number of those, and of all cases."""
        with self._lock:
            self._computing.clear()  # the network of a case that failed runs no more
            if done == total:
                self._progress(done, total, counted(total, "case"), rated=False)
