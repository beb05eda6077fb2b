"""The command line's process: ``znni``, or ``python -m znni`` where no ``znni`` is on the path."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn


class _Leaving:
    """Ends the process once everything that others have registered for its end is done.

    Then only the interpreter's own teardown is left. It destroys every module and array one by one,
    which takes up to half a second and keeps nothing safe: the system takes the memory back at
    once.

    Attributes:
        code: the exit code.
    """

    code = 1

    def __call__(self) -> None:
        """End the process; if its last words cannot be written, leave that to the interpreter."""
        try:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except (AttributeError, OSError, ValueError):  # there is none; its reader is gone; closed
            return
        os._exit(self.code)


# Options with which CUDA does not start in this process, or not at once.
ELSEWHERE = {"gpus", "cluster", "help", "h"}


def _begun_with(arguments: Sequence[str]) -> Callable[[], object] | None:
    """Return the work of a thread while a command loads; None if the command has none."""
    from znni.core.processors import HOST

    on_host = any(it.rpartition("=")[2] == HOST for it in arguments)
    named = {it.lstrip("-").partition("=")[0] for it in arguments if it.startswith("-")}
    runs = arguments[:1] == ["infer"] or arguments[:2] == ["nnunet", "predict"]
    return _start_cuda if runs and not on_host and not named & ELSEWHERE else None


def _start_cuda() -> None:
    """Begin to start CUDA on this machine's GPUs, if there are any. It takes up to half a second.

    The driver is asked before.
    """
    from znni.machine import gpus

    gpus.begin_cuda()


def _stop_at_once(number: int, _frame: object) -> NoReturn:
    """End the process by a signal while a command loads, when nothing has to be cleaned up."""
    name = signal.Signals(number).name
    with suppress(OSError):  # nobody reads it
        os.write(2, f"znni: error: stopped by {name}\n".encode())
    os._exit(128 + number)


def run() -> None:
    """Run a command as a process of its own, which ends with it."""
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop_at_once)
    leaving = _Leaving()
    # What is registered first is called last, and threads have ended by then. So this comes before
    # the imports.
    atexit.register(leaving)
    from znni.core.loading import begin, own_process

    own_process()
    begin(_begun_with(sys.argv[1:]))
    from znni.cli import main

    try:
        main()
        leaving.code = 0
    except SystemExit as asked:
        leaving.code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        raise
    finally:
        signal.signal(signal.SIGINT, interrupted)


if __name__ == "__main__":
    run()
