"""The process that computes a worker's blocks, seen from the worker."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

from znni.cluster.calls import (
    Account,
    Answer,
    Call,
    Compute,
    EngineGone,
    GetReady,
    Limits,
    Probe,
    Recipe,
    Restart,
)
from znni.cluster.child import connection_pair
from znni.core.child_process import command_of, signal_name, start_with
from znni.core.errors import RunFailed
from znni.machine.gpus_option import VISIBLE

END_SECONDS = 30.0  # for a process to end once it is killed, or once its socket is closed


class EngineProcess:
    """A process that answers calls. If it ends, the next call starts another one.

    A process that has got a block answers no other calls but ``Account``. For other calls, another
    process replaces it. The caller has taken back the blocks by then.

    Any thread may ask.
    """

    def __init__(self, recipe: Recipe, limits: Limits) -> None:
        self._recipe = recipe
        self._limits = limits
        self._lock = Lock()
        self._numbers = count()
        self._running: _Running | None = None
        self._ready: GetReady | None = None
        self._closed = False

    def ask(self, call: Call) -> Answer:
        """Hand a call over, and wait for the answer.

        A process that replaces another one is first prepared for the same plan.
        """
        answers: SimpleQueue[Answer] = SimpleQueue()
        if isinstance(call, Restart):
            self._end()
            return Answer()
        with self._lock:
            if self._closed:
                return Answer(error=RunFailed("this worker is being closed; run again"))
            running = self._running
            if running is None or not running.takes(call):
                if running:
                    running.kill()  # it may hold a GPU's memory for some seconds more
                self._running = running = _Running(self._limits)
                running.begin(self._recipe, self._limits)
                if self._ready and isinstance(call, Probe | Compute):
                    running.send(next(self._numbers), self._ready, SimpleQueue())
            if isinstance(call, GetReady):
                self._ready = call
            running.send(next(self._numbers), call, answers)
        return answers.get()  # the coordinator knows how long to wait, and then ends the process

    def close(self) -> None:
        """End the process. Calls that wait for it get an error."""
        self._closed = True
        self._end()
        with self._lock:
            self._end()  # of a process that was started meanwhile

    def _end(self) -> None:
        """End the process, without the lock: its holder may be waiting for the process."""
        if running := self._running:
            running.kill()


class _Running:
    """One process, and a thread that takes its answers.

    That thread starts it, too: the system ends the process when the thread is gone.
    """

    def __init__(self, limits: Limits) -> None:
        self._ended: Answer | None = None  # the answer to all calls when the process is gone
        self._unreadable = ""  # why its answers cannot be read, if that is so
        self._waiting: dict[int, SimpleQueue[Answer]] = {}
        self._lock = Lock()
        self._begun = False  # whether it has got a block
        self._gone = Event()
        self._connection, self._theirs = connection_pair()
        self._visible = {} if limits.visible is None else {VISIBLE: limits.visible}
        self._cores = limits.cores
        self._process: subprocess.Popen[bytes]
        started: SimpleQueue[BaseException | None] = SimpleQueue()
        Thread(target=self._keep, args=(started,), daemon=True).start()
        if error := started.get():
            raise error

    def begin(self, recipe: Recipe, limits: Limits) -> None:
        """Send the recipe and the limits, before any call."""
        with suppress(OSError):  # it has just ended, which the thread will answer to each call
            self._connection.send((recipe, limits))

    def takes(self, call: Call) -> bool:
        """Return whether this process answers a call; otherwise another process replaces it."""
        return self._ended is None and (isinstance(call, Compute | Account) or not self._begun)

    def send(self, number: int, call: Call, answers: SimpleQueue[Answer]) -> None:
        """Send a call; the answer comes through a queue."""
        with self._lock:
            if self._ended:
                answers.put(self._ended)
                return
            self._waiting[number] = answers
            self._begun = self._begun or isinstance(call, Compute)
        with suppress(OSError):  # the process has just ended, which the other thread will answer
            self._connection.send((number, call))

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self._process.kill()
        if not self._gone.wait(END_SECONDS):
            raise RunFailed(
                f"process {self._process.pid} on {platform.node()} does not end, though it is "
                f"killed; its file system or GPU may not answer"
            )

    def _keep(self, started: SimpleQueue[BaseException | None]) -> None:
        try:
            if self._cores:  # a process has the cores of the thread that starts it
                os.sched_setaffinity(0, self._cores)
            self._process = start_with(
                [self._theirs], command_of("znni.cluster.child", str(self._theirs)), self._visible
            )
        except BaseException as error:
            started.put(error)
            return
        finally:
            os.close(self._theirs)
        started.put(None)
        self._take_answers(self._connection)
        ended = Answer(error=EngineGone(self._last_words()))
        with self._lock:
            self._ended = ended
            waiting, self._waiting = self._waiting, {}
        for answers in waiting.values():
            answers.put(ended)
        self._gone.set()

    def _take_answers(self, connection: Connection[Any, Any]) -> None:
        while True:
            try:
                number, answer = connection.recv()
            except (EOFError, OSError):
                return
            except Exception as error:  # of unpickling; whose answer it is cannot be known
                self._unreadable = f"{type(error).__name__}: {error}"
                self._process.kill()
                return
            with self._lock:
                answers = self._waiting.pop(number, None)
            if answers:
                answers.put(answer)

    def _last_words(self) -> str:
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            return "the process that computes blocks closed its socket, and did not end"
        if self._unreadable:
            return f"the process that computes blocks gave an unreadable answer: {self._unreadable}"
        if code >= 0:
            return f"the process that computes blocks ended (exit code {code})"
        return f"the process that computes blocks was killed by {signal_name(-code)}"
