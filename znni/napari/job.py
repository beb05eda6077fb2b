"""A task in a process of its own, so that the window stays awake, whatever the run does."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np

from znni.core import system
from znni.core.child_process import command_of, signal_name, start_with
from znni.napari.task import (
    Began,
    Cancelled,
    Event,
    Failed,
    Finished,
    Planned,
    Progressed,
    StoredArray,
    Task,
)

LOOK_EVERY_SECONDS = 0.2

# A process that is asked to stop ends its block first. If that takes longer, it is killed: the
# blocks that its ledger lists are whole at any moment.
PATIENCE_SECONDS = 10.0

# Before its first block, a process has nothing to end.
GRACE_SECONDS = 1.0

ENDS = (Planned, Finished, Cancelled, Failed)


class Job:
    """A task in a process of its own. It is done once.

    Args:
        array: the array to read, in place of the task's source; None: the source is a name.
    """

    def __init__(self, task: Task, array: Any = None) -> None:
        self._task = task
        self._array = array
        self._window, self._other = Pipe()
        self._killed_from = float("inf")
        self._is_computing = False
        self._handing_over = Lock()
        self._is_handed_over = False

    def stop(self) -> None:
        """Ask the process to stop. Further calls do nothing."""
        with self._handing_over:
            if self.is_stopping:
                return
            patience = PATIENCE_SECONDS if self._is_computing else GRACE_SECONDS
            self._killed_from = monotonic() + patience
            if self._is_handed_over:
                self._send("stop")

    @property
    def is_stopping(self) -> bool:
        """True if the process was asked to stop."""
        return self._killed_from < float("inf")

    def events(self) -> Iterator[Event | None]:
        """Do the task, and yield what happens. The last event says how it ended.

        While nothing happens, ``None`` is yielded several times a second, so that a thread that
        iterates can end. If it ends, the process is asked to stop.
        """
        with tempfile.TemporaryDirectory(prefix="znni-") as name:
            folder, task = Path(name), self._task
            if self._array is not None:
                try:
                    task = replace(task, source=stored_array(self._array, folder))
                except Exception as error:  # objects of other libraries raise all kinds
                    yield Failed(f"the layer's values cannot be handed to a process: {error}")
                    return
            if self.is_stopping:
                yield Cancelled()
                return
            ended = None
            with self._process(folder / "log") as process:
                self._hand_over(task)
                for event in self._events(process):
                    ended = event if isinstance(event, ENDS) else ended
                    yield event
            if ended is None:
                yield self._sudden_end(process.returncode, folder / "log")

    def _hand_over(self, task: Task) -> None:
        """Give the process its task. Only then does it take the message to stop."""
        self._send(task)
        with self._handing_over:
            self._is_handed_over = True
            if self.is_stopping:
                self._send("stop")

    def _send(self, message: object) -> None:
        with suppress(OSError):  # the process has ended
            self._window.send(message)

    def _events(self, process: subprocess.Popen[bytes]) -> Iterator[Event | None]:
        """Yield what the process tells until it ends."""
        while True:
            if monotonic() > self._killed_from:
                _kill(process)
            if not self._window.poll(LOOK_EVERY_SECONDS):
                yield None
                continue
            try:
                event = self._window.recv()
            except (EOFError, OSError):
                return
            # A whole case works on the disk in other steps, too.
            works = isinstance(event, Progressed) and event.step
            self._is_computing = self._is_computing or isinstance(event, Began) or bool(works)
            yield event

    @contextmanager
    def _process(self, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start the process; at the end, wait for it, and kill it if it stays."""
        number = self._other.fileno()
        with log.open("wb") as file:
            process = start_with(
                [number], command_of("znni.napari.child", str(number)), output=file
            )
        self._other.close()
        try:
            yield process
        finally:
            self.stop()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                _kill(process)
                process.wait()
            self._window.close()

    def _sudden_end(self, code: int, log: Path) -> Event:
        """Return the end of a process that did not report it."""
        if self.is_killed:
            return Cancelled()
        how = f"by {signal_name(-code)}" if code < 0 else f"with code {code}"
        hint = ", maybe because memory ran out" if code == -system.KILLED else ""
        said = log.read_text(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        return Failed(
            f"the process of the run ended {how}{hint}{last}; the finished blocks are kept, and "
            f"the same run goes on from there"
        )

    @property
    def is_killed(self) -> bool:
        """True if the process took too long to stop, and was killed."""
        return monotonic() > self._killed_from


def stored_array(array: Any, folder: Path) -> StoredArray:
    """Return an array in a form that another process can open.

    An array in memory is written to a file. Other arrays read their values when they are
    sliced, and are pickled without them.
    """
    if isinstance(array, np.ndarray):
        file = folder / "layer.npy"
        np.save(file, array)
        return StoredArray(file)
    if "dask" in sys.modules:  # its arrays may hold functions, which only cloudpickle packs
        import cloudpickle

        return StoredArray(packed=cloudpickle.dumps(array))
    return StoredArray(packed=pickle.dumps(array))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with suppress(ProcessLookupError):
        system.kill_group(process.pid)
