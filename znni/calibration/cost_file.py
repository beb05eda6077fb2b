"""The file of a user's measured times, one for all programs and machines that share it.

SQLite, with a rollback journal: any number of processes may read and write, over a network's file
system too, and one that is killed leaves the file as it was before its last transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.core.user_cache import user_cache

# The environment variable that names another file.
VARIABLE = "ZNNI_COSTS"

# The layout below; a file with another is refused.
LAYOUT = 1

WAIT_SECONDS = 30.0  # for another process to end its transaction

_TABLE = """
CREATE TABLE measurements (
    device TEXT NOT NULL,
    caches TEXT NOT NULL,
    threads INTEGER NOT NULL,
    libraries TEXT NOT NULL,
    primitive TEXT NOT NULL,
    version INTEGER NOT NULL,
    operation TEXT NOT NULL,
    shape TEXT NOT NULL,
    seconds REAL NOT NULL,
    day TEXT NOT NULL
)
"""
_INDEX = """
CREATE INDEX by_conditions ON measurements
    (device, caches, threads, libraries, primitive, version, operation, shape)
"""
# Seconds that a unit of what a run does beside its layers takes, by name.
_RATES = """
CREATE TABLE IF NOT EXISTS rates (
    device TEXT NOT NULL,
    caches TEXT NOT NULL,
    threads INTEGER NOT NULL,
    libraries TEXT NOT NULL,
    name TEXT NOT NULL,
    seconds REAL NOT NULL,
    day TEXT NOT NULL
)
"""


class CostFile:
    """Where measured times are kept.

    Args:
        path: the file; by default the one that ``ZNNI_COSTS`` names, or one in the user's folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(os.environ.get(VARIABLE) or user_cache() / "costs.sqlite")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """The tables; None where there are none yet.

        Raises:
            InvalidInput: the file cannot be read, or is not such a database.
        """
        with self._errors("read"):
            if not self.path.exists():
                yield None
                return
            # Files that cannot be written are only read; none is made.
            address = f"{self.path.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, timeout=WAIT_SECONDS, uri=True)) as connection:
                yield connection if _has_table(connection) else None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, on tables that are made if there are none.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self._errors("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(
                sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
            ) as connection:
                connection.execute("BEGIN IMMEDIATE")
                if not _has_table(connection):
                    connection.execute(_TABLE)
                    connection.execute(_INDEX)
                    connection.execute(f"PRAGMA user_version = {LAYOUT}")
                connection.execute(_RATES)  # which files had not from the start
                yield connection
                connection.execute("COMMIT")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """One clear error for all that may be wrong with the file."""
        try:
            yield
        except OSError as error:  # of its folder
            raise InvalidInput(
                f"{self.path}: measured costs cannot be {what}: {error.strerror}; name another "
                f"file with {VARIABLE}"
            ) from error
        except (sqlite3.Error, ValueError, InvalidInput) as error:
            reason = str(error).splitlines()[0]
            raise InvalidInput(
                f"{self.path}: measured costs cannot be {what}: {reason}; delete the file, or name "
                f"another one with {VARIABLE}"
            ) from error


def _has_table(connection: sqlite3.Connection) -> bool:
    """Whether there are measurements.

    Raises:
        ValueError: in another layout.
    """
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if layout not in (0, LAYOUT):
        raise ValueError(f"it is of another version of znni (layout {layout}, not {LAYOUT})")
    return bool(layout)
