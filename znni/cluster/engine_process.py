"""The process that computes a worker's blocks, seen from the worker."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from znni.cluster.calls import Answer, Call, EngineGone, GetReady, Limits, Recipe, Restart
from znni.cluster.child import connection_pair
from znni.core.child_process import command_of, environment, signal_name
from znni.core.errors import RunFailed
from znni.machine.chosen_gpus import VISIBLE


class EngineProcess:
    """A process that answers calls. If it ends, the next call starts another one.

    Any thread may ask.

    Args:
        recipe: what it computes.
        limits: what it may use.
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

        A process that replaces another one first gets ready as that one did.
        """
        answers: SimpleQueue[Answer] = SimpleQueue()
        with self._lock:
            if self._closed:
                return Answer(error=RunFailed("this worker is being closed; run again"))
            if isinstance(call, Restart):
                if self._running:
                    self._running.kill()
                self._running = None
                return Answer()
            if self._running is None or not self._running.alive:
                if self._running:
                    self._running.kill()  # it may hold a GPU's memory for some seconds more
                self._running = _Running(self._recipe, self._limits)
                if self._ready and not isinstance(call, GetReady):
                    self._running.send(next(self._numbers), self._ready, SimpleQueue())
            if isinstance(call, GetReady):
                self._ready = call
            self._running.send(next(self._numbers), call, answers)
        return answers.get()

    def close(self) -> None:
        """End the process. Calls that wait for it get an error."""
        with self._lock:
            self._closed = True
            if self._running:
                self._running.kill()


class _Running:
    """One process, and a thread that takes its answers.

    That thread starts it, too: the system ends the process when the thread is gone.
    """

    def __init__(self, recipe: Recipe, limits: Limits) -> None:
        self._ended: Answer | None = None  # the answer to all calls when the process is gone
        self._unreadable = ""  # why its answers cannot be read, if that is so
        self._waiting: dict[int, SimpleQueue[Answer]] = {}
        self._lock = Lock()
        self._connection, self._theirs = connection_pair()
        self._visible = {} if limits.visible is None else {VISIBLE: limits.visible}
        self._process: subprocess.Popen[bytes]
        started: SimpleQueue[BaseException | None] = SimpleQueue()
        Thread(target=self._keep, args=(started,), daemon=True).start()
        if error := started.get():
            raise error
        with suppress(OSError):  # it has just ended, which the thread will answer to each call
            self._connection.send((recipe, limits))

    @property
    def alive(self) -> bool:
        """True if the process can answer."""
        return self._ended is None

    def send(self, number: int, call: Call, answers: SimpleQueue[Answer]) -> None:
        """Send a call; the answer comes through a queue."""
        with self._lock:
            if self._ended:
                answers.put(self._ended)
                return
            self._waiting[number] = answers
        with suppress(OSError):  # the process has just ended, which the other thread will answer
            self._connection.send((number, call))

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def _keep(self, started: SimpleQueue[BaseException | None]) -> None:
        try:
            self._process = subprocess.Popen(
                command_of("znni.cluster.child", str(self._theirs)),
                stdin=subprocess.DEVNULL,
                env=environment(self._visible),
                pass_fds=[self._theirs],
                process_group=0,
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
        code = self._process.wait()
        if self._unreadable:
            return f"the process that computes blocks gave an unreadable answer: {self._unreadable}"
        if code >= 0:
            return f"the process that computes blocks ended (exit code {code})"
        return f"the process that computes blocks was killed by {signal_name(-code)}"
