"""The process of a run. It takes a task from the window, and sends events back.

If the window asks it to stop, or is gone, it interrupts itself. Then the output keeps its finished
blocks, and another run goes on from there.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from threading import Thread, main_thread
from time import monotonic
from typing import Any

import numpy as np

import znni
from znni.calibration.compiled_notes import about_compiling
from znni.core.errors import in_one_line
from znni.core.text import counted, duration, in_units
from znni.engine.timeline import CAN_COMPUTE
from znni.napari.task import (
    Began,
    Cancelled,
    Event,
    Failed,
    Finished,
    Planned,
    Progressed,
    Source,
    StoredArray,
    Task,
    Warned,
)
from znni.napari.words import in_window
from znni.plans.plan import Plan

TELL_EVERY_SECONDS = 0.2


def main(number: str) -> None:
    """Do one task.

    Args:
        number: the number of the file of this process's end of the pipe.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    os.set_inheritable(int(number), False)  # processes of several GPUs have their own pipes
    pipe = Connection(int(number))
    try:
        task = pipe.recv()
        Thread(target=_interrupt_when_asked, args=(pipe,), daemon=True).start()
        do(task, pipe.send)
    except KeyboardInterrupt:  # before the task has begun
        pipe.send(Cancelled())
    except (BrokenPipeError, EOFError):  # the window is gone
        return


def do(task: Task, tell: Callable[[Event], None]) -> None:
    """Do a task, and tell how it ends. Mistakes of a user, and all other errors, become text."""
    telling = _Telling(tell)
    log = logging.getLogger("znni")
    level = log.level
    log.addHandler(telling)
    log.setLevel(logging.INFO)  # for the moment at which the first block begins
    try:
        tell(run(task, tell) if task.runs else prediction(task))
    except KeyboardInterrupt:
        tell(Cancelled())
    except (znni.ZnniError, MemoryError) as error:
        tell(Failed(in_window(in_one_line(error))))
    except (BrokenPipeError, EOFError):
        raise
    except Exception as error:
        tell(Failed(f"znni failed, which is a fault of znni: {in_one_line(error, repr(error))}"))
        raise
    finally:
        log.setLevel(level)
        log.removeHandler(telling)


def run(task: Task, tell: Callable[[Event], None]) -> Finished:
    """Run a network, and return the report."""
    progress = _Progress(tell)
    report: object
    try:
        if isinstance(task.source, tuple):
            report = znni.infer_case(
                task.source, task.network, task.out, progress=progress, **task.options
            )
        else:
            report = znni.infer(
                opened(task.source), task.network, task.out, progress=partial(progress, ""),
                **task.options,
            )  # fmt: skip
    except KeyboardInterrupt:
        progress.tell_rest()  # the window says how much stays
        raise
    return Finished(str(report))


def prediction(task: Task) -> Planned:
    """Return what a run would take, and what would stop it."""
    if isinstance(task.source, tuple):
        case = znni.plan_case(task.source, task.network, task.out, **task.options)
        lines = [
            f"time      {duration(sum(case.seconds.values()))} at most",
            f"memory    {in_units(max(case.memory.values()))} at most",
            *map(_patches, case.plans),
        ]
        return Planned("\n".join(lines), "\n".join([str(case), *map(str, case.plans)]))
    found = znni.dry_run(opened(task.source), task.network, task.out, **task.options)
    lines = [
        f"time      {found.plan.time_in_words(found.seconds)}",
        f"memory    {in_units(found.memory)}",
        _patches(found.plan),
    ]
    if found.plan.gpu_memory:
        lines.insert(2, f"GPU       {in_units(found.plan.gpu_memory.total)}")
    if first := about_compiling(found.plan):
        lines.append(f"first     {first}")
    share = found.finished / found.voxels
    if found.finished:
        lines.append(f"finished  {share:.0%}, by an earlier run, which this one continues")
    details = "\n".join([str(found.plan), *found.lines])
    obstacles = tuple(in_window(in_one_line(error)) for error in found.obstacles)
    return Planned("\n".join(lines), details, share, obstacles, compiles=bool(first))


def opened(source: Source) -> Any:
    """Return an input as ``znni.infer`` takes it."""
    if not isinstance(source, StoredArray):
        return source
    return np.load(source.file, mmap_mode="r") if source.file else pickle.loads(source.packed)


class _Progress:
    """Tells the progress, several times a second."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._next_time = 0.0
        self._untold: Progressed | None = None

    def __call__(self, step: str, done: int, total: int) -> None:
        """Take the progress of a step, and tell it unless some was told a moment ago."""
        self._untold = Progressed(done, total, step)
        if (now := monotonic()) >= self._next_time or done == total:
            self._next_time = now + TELL_EVERY_SECONDS
            self.tell_rest()

    def tell_rest(self) -> None:
        """Tell the latest progress, if it was not told."""
        event, self._untold = self._untold, None
        if event is not None:
            self._tell(event)


class _Telling(logging.Handler):
    """Tells the warnings of znni, and when the first block begins."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Tell a warning, or that the first block begins."""
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self._tell(Warned(text))
        elif text.endswith(CAN_COMPUTE):
            self._tell(Began())


def _patches(plan: Plan) -> str:
    """Return the patch of a plan in words."""
    return f"patch     {plan.patch}, {counted(plan.patches, 'block')}, on {plan.device}"


def _interrupt_when_asked(pipe: Connection[Any, Any]) -> None:
    """Interrupt the main thread as soon as the window sends anything, or is gone."""
    with suppress(EOFError, OSError):
        pipe.recv()
    if (thread := main_thread().ident) is not None:
        signal.pthread_kill(thread, signal.SIGINT)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    finally:
        # All is told and written. At an exit, Python would wait for threads of libraries, some of
        # which an interrupt leaves waiting for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
