"""The file of a user's measured times. All programs and machines that share it use one file.

It is an SQLite file with a rollback journal. Any number of processes may read and write it, also
over a network's file system. A killed process leaves the file as it was before its last
transaction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from znni.core.errors import InvalidInput
from znni.core.user_cache import user_cache

if TYPE_CHECKING:
    import sqlite3

# Environment variable that names another file.
VARIABLE = "ZNNI_COSTS"

# Version of the layout below; a file with another one is refused.
LAYOUT = 1

WAIT_SECONDS = 30.0  # waiting time for another process to end its transaction

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
# Seconds per unit of a run's work outside its layers, by name.
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
    """The file of measured times.

    Args:
        path: path of the file; by default the one named by ``ZNNI_COSTS``, or one in the user's
            folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(os.environ.get(VARIABLE) or user_cache() / "costs.sqlite")

    @property
    def there(self) -> bool:
        """True if there is such a file. Without it, nobody needs the conditions of this machine.

        Raises:
            InvalidInput: its folder cannot be read.
        """
        with self._errors("read"):
            return self.path.exists()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection for reading; None if there are no tables yet.

        Raises:
            InvalidInput: the file cannot be read, or is not such a database.
        """
        with self._errors("read"):
            if not self.there:
                yield None
                return
            import sqlite3  # most runs have no such file

            # A file without write permission is opened for reading only, and no file is created.
            address = f"{self.path.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, timeout=WAIT_SECONDS, uri=True)) as connection:
                yield connection if _has_table(connection) else None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction; missing tables are created.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self._errors("written"):
            import sqlite3

            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(
                sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
            ) as connection:
                connection.execute("BEGIN IMMEDIATE")
                if not _has_table(connection):
                    connection.execute(_TABLE)
                    connection.execute(_INDEX)
                    connection.execute(f"PRAGMA user_version = {LAYOUT}")
                connection.execute(_RATES)  # older files lack this table
                yield connection
                connection.execute("COMMIT")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn all errors about the file into one clear error."""
        try:
            yield
        except OSError as error:  # from creating its folder
            raise InvalidInput(
                f"{self.path}: measured costs cannot be {what}: {error.strerror}; name another "
                f"file with {VARIABLE}"
            ) from error
        except _refusals() as error:
            reason = str(error).splitlines()[0]
            raise InvalidInput(
                f"{self.path}: measured costs cannot be {what}: {reason}; delete the file, or name "
                f"another one with {VARIABLE}"
            ) from error


def _refusals() -> tuple[type[Exception], ...]:
    """Return the errors that mean that a file is no database of measured costs."""
    import sqlite3

    return sqlite3.Error, ValueError, InvalidInput


def _has_table(connection: sqlite3.Connection) -> bool:
    """Return whether there are measurements.

    Raises:
        ValueError: the file has another layout.
    """
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if layout not in (0, LAYOUT):
        raise ValueError(f"it is of another version of znni (layout {layout}, not {LAYOUT})")
    return bool(layout)
