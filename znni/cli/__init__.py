"""The command line: ``znni infer``, ``znni plan`` and the other commands in ``commands``."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import NoReturn, TextIO

import typer

from znni.cli.commands import app
from znni.cli.signals import Stopped, stopping_on_signals
from znni.cli.values import usage_error
from znni.cli.words import echo, on_command_line
from znni.core.errors import ZnniError, in_one_line
from znni.core.logged import log_of_waits

INTERNAL_ERROR = 70


def main() -> None:
    """Run a command. Print any error as one line on stderr, and exit with its code.

    ``--debug``, anywhere on the line, shows the log and prints tracebacks.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    _log_to_stderr(debug)
    try:
        with stopping_on_signals():
            app(arguments or ["--help"], prog_name="znni", standalone_mode=False)
    except (ZnniError, Stopped) as error:
        _fail(in_one_line(error), error.exit_code, error, debug)
    except typer.TyperException as error:  # an option or argument is not understood
        _fail(in_one_line(error, usage_error(error)), error.exit_code, error, debug)
    except (MemoryError, OSError) as error:
        _fail(in_one_line(error), 1, error, debug)
    except Exception as error:
        bug = f"{type(error).__name__}: {error}; a bug: add --debug and report what it shows"
        _fail(in_one_line(error, bug), INTERNAL_ERROR, error, debug)


LOGGED = "%(library)s: %(levelname)s: %(message)s"


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what is stderr at that time: a bar of progress stands in for it meanwhile."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as text in the command line's words, with the name of its library."""
        record.library = record.name.partition(".")[0]
        return on_command_line(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.setStream(sys.stderr)
        super().emit(record)


def _log_to_stderr(debug: bool) -> None:
    """Have warnings written to stderr; all records for ``--debug``, and waits on a terminal."""
    logging.addLevelName(logging.WARNING, "warning")
    logging.addLevelName(logging.INFO, "info")
    logging.basicConfig(
        level=logging.INFO if debug else logging.WARNING, format=LOGGED, handlers=[_ToStderr()]
    )
    if sys.stderr.isatty():
        log_of_waits.setLevel(logging.INFO)


def _fail(message: str, code: int, error: BaseException, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exception(error)
    echo(f"znni: error: {message}", err=True)
    sys.exit(code)
