"""Signals that ask a command to stop, raised as exceptions so that it can clean up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, NoReturn

from znni.core.system import ASKING_TO_STOP

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

# Python drops an exception that is raised while it deletes an object. Then the signal is sent
# again.
AGAIN_SECONDS = 0.01


class Stopped(BaseException):
    """A signal asked the command to stop.

    It is no ``Exception``, so no ``except Exception`` on the way catches it.

    Attributes:
        number: the number of the signal.
        exit_code: the code that a shell reports for a death by that signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number
        self.exit_code = 128 + number


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Let signals that ask to stop raise ``Stopped`` in the main thread."""

    def stop(number: int, _frame: object) -> NoReturn:
        raise Stopped(number)

    def note_dropped(dropped: UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, Stopped):
            Timer(AGAIN_SECONDS, os.kill, (os.getpid(), dropped.exc_value.number)).start()
        else:
            hook(dropped)

    hook, sys.unraisablehook = sys.unraisablehook, note_dropped
    before = {number: signal.getsignal(number) for number in ASKING_TO_STOP}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # jobs in the background or under nohup ignore signals
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
