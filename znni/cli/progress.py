"""The progress of a run: a bar on a terminal or in a notebook, one line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Protocol

from znni.cli.notebook_bar import Bar, NotebookBar, display_of_notebook
from znni.core.logged import log_of_waits
from znni.core.text import duration

if TYPE_CHECKING:
    from znni.plans.plan import Plan

LINE_EVERY_SECONDS = 60


class Advance(Protocol):
    """Takes the number of things done, the total, and what else is to be said.

    The rate is that of the run, which its report also gives. So a step that makes no output, such
    as reading before the run, is not ``rated``.
    """

    def __call__(self, done: int, total: int, beside: str = "", /, *, rated: bool = True) -> None:
        """Show it."""


@contextmanager
def show_progress(unit: str = "voxels") -> Iterator[Advance]:
    """Show progress within a ``with`` block.

    A terminal has a bar, and so has a notebook. Elsewhere a line a minute goes to stderr, without
    control characters.

    Args:
        unit: name of the counted things.

    Example:
        >>> with znni.show_progress() as progress:
        ...     znni.infer("volume.h5", "net.yaml", "out.h5", progress=progress)

    Yields:
        A function that takes the progress.
    """
    if display := display_of_notebook():
        yield _in_notebook(unit, NotebookBar(display))
        return
    if not sys.stderr.isatty():
        yield _line_a_minute(unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    bar = Progress(
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[beside]}", table_column=Column()),  # a long text has more lines
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task("", total=None, rate="", left="", beside="")
        rate_of = _Rate()

        def advance(done: int, total: int, beside: str = "", /, *, rated: bool = True) -> None:
            rate = rate_of(done, time.perf_counter())
            left = f"{duration((total - done) / rate)} left" if rate and done < total else ""
            bar.update(
                task,
                completed=done,
                total=total,
                rate=_said(rate, unit) if rated else "",
                left=left if rated else "",
                beside=beside,
            )

        yield advance


def telling(progress: Advance) -> Callable[[Plan, int, int], None]:
    """Return a function that shows the beginning of a run, and the time that its plan predicts.

    A terminal also has the band of that time, once, above the bar. As soon as some blocks are
    measured, progress tells the time that is left by their rate.
    """
    from znni.calibration.compiled_notes import about_compiling  # few progresses are of runs

    def begun(plan: Plan, done: int, total: int) -> None:
        blocks = ceil((total - done) / max(1, total) * plan.patches)
        seconds = plan.time.for_job(blocks).running if blocks else 0.0
        first = about_compiling(plan)
        more = f", and {first}" if first else ""
        progress(done, total, f"about {duration(seconds)}")  # more would leave the bar no space
        log_of_waits.info("the run takes %s, as predicted%s", plan.time_in_words(seconds), more)

    return begun


def _said(rate: float, unit: str) -> str:
    """Return a rate in words; nothing if it is not known yet."""
    if not rate:
        return ""
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s"


class _Rate:
    """The number done per second since the first report.

    A resumed run starts with many already done, so the first report is the origin. If fewer are
    done than before, other things are counted from then on.
    """

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last = 0

    def __call__(self, done: int, now: float) -> float:
        """Return the current rate; 0 at the first report."""
        if self._first is None or done < self._last:
            self._first = done, now
        self._last = done
        before, then = self._first
        return (done - before) / (now - then) if now > then else 0.0


def _in_notebook(unit: str, shown: NotebookBar) -> Advance:
    rate_of = _Rate()

    def advance(done: int, total: int, beside: str = "", /, *, rated: bool = True) -> None:
        now = time.perf_counter()
        rate = rate_of(done, now)
        shown.show(Bar(done, total, rate, _said(rate, unit) if rated else "", beside), now)

    return advance


def _line_a_minute(unit: str) -> Advance:
    last, rate_of = time.perf_counter(), _Rate()

    def advance(done: int, total: int, beside: str = "", /, *, rated: bool = True) -> None:
        nonlocal last
        now = time.perf_counter()
        rate = rate_of(done, now)
        if now - last < LINE_EVERY_SECONDS or not rate:
            return
        last = now
        left = f"{(total - done) / rate / 60:.0f} min left"
        parts = (f"{done / total:.0%} done", _said(rate, unit) if rated else "", left, beside)
        sys.stderr.write(f"{', '.join(filter(None, parts))}\n")
        sys.stderr.flush()

    return advance
