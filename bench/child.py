"""Objects in processes of their own, which have their own memory and may be killed alone."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from operator import methodcaller
from typing import Any
from unittest.mock import patch

from bench.rounds import Stopwatch
from znni.machine.arrays import high_water_mark


class ChildFailed(Exception):
    """A child process ended, or its object raised an error; one line says which."""


class Child:
    """Calls methods of an object that lives in another process.

    The process is started afresh (not forked), so that it has nothing of its parent's.

    Args:
        make: a module's function or class; called in the child to make the object.
        arguments: for ``make``; pickled.
        environment: variables that the child's system libraries read as it starts.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        with patch.dict(os.environ, environment or {}):  # the child inherits it
            self._process.start()
        theirs.close()
        self._receive()  # made, or failed at it

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method, and return its result.

        Raises:
            ChildFailed: the method raised an error, or its process is gone.
        """
        try:
            self._connection.send((method, arguments))
        except OSError:
            raise ChildFailed(self._last_words()) from None
        return self._receive()

    def stopwatch(
        self, failed: dict[str, str], name: str, method: str, *arguments: Any
    ) -> Stopwatch:
        """Return a contestant whose time the method returns; if it fails, ``failed`` says why."""

        def run() -> float | None:
            if name in failed:
                return None
            try:
                return float(self.call(method, *arguments))
            except ChildFailed as error:
                failed[name] = str(error)
                return None

        return run

    def peak_memory(self) -> int:
        """Return the highest resident bytes of the process since it started."""
        return int(self.call("peak_memory"))

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _receive(self) -> Any:
        try:
            succeeded, value = self._connection.recv()
        except (EOFError, OSError):
            raise ChildFailed(self._last_words()) from None
        if not succeeded:
            raise ChildFailed(value)
        return value

    def _last_words(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        if code == -signal.SIGKILL:
            return "its process was killed, as the system does when memory runs out"
        return f"its process ended with exit code {code}"


def _serve(connection: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Make the object, and answer calls until the parent hangs up."""
    try:
        succeeded, made = outcome_of(make, *arguments)
        connection.send((succeeded, None if succeeded else made))
        while succeeded:
            method, given = connection.recv()
            if method == "peak_memory":
                connection.send(outcome_of(high_water_mark))
            else:
                connection.send(outcome_of(methodcaller(method, *given), made))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return


def outcome_of(function: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Return True and a function's result, or False and one line on its error."""
    try:
        return True, function(*arguments)
    except Exception as error:
        return False, traceback.format_exception_only(error)[-1].strip()
