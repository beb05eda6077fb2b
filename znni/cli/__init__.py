"""The command line: ``znni infer``, ``znni plan`` and the other commands in ``commands``."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import NoReturn

import typer

from znni.cli.commands import app
from znni.cli.signals import Stopped, stopping_on_signals
from znni.cli.values import usage_error
from znni.core.errors import ZnniError

INTERNAL_ERROR = 70
LONGEST = 1500  # characters of an error message


def main() -> None:
    """Run a command. Print any error as one line on stderr, and exit with its code.

    ``--debug``, anywhere on the line, shows the log and prints tracebacks.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    logging.addLevelName(logging.WARNING, "warning")
    logging.basicConfig(
        level=logging.INFO if debug else logging.WARNING, format="znni: %(levelname)s: %(message)s"
    )
    try:
        with stopping_on_signals():
            app(arguments or ["--help"], prog_name="znni", standalone_mode=False)
    except (ZnniError, Stopped) as error:
        _fail(str(error), error.exit_code, error, debug)
    except typer.TyperException as error:  # an option or argument is not understood
        _fail(usage_error(error), error.exit_code, error, debug)
    except MemoryError as error:
        _fail(f"memory ran out: {error}; free some, or give less with --ram", 1, error, debug)
    except OSError as error:
        _fail(str(error), 1, error, debug)
    except Exception as error:
        bug = f"{type(error).__name__}: {error}; a bug: add --debug and report what it shows"
        _fail(bug, INTERNAL_ERROR, error, debug)


def _fail(message: str, code: int, error: BaseException, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exception(error)
    whole = " ".join("; ".join([message, *getattr(error, "__notes__", [])]).split())
    if len(whole) > LONGEST:  # a name in a file may be a page long; the remedy comes last
        whole = f"{whole[: LONGEST // 2]} [...] {whole[-LONGEST // 2 :]}"
    typer.echo(f"znni: error: {whole}", err=True)
    sys.exit(code)
