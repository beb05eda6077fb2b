"""Measured times in a file of the user's, one for all programs and machines that share it.

SQLite, with a rollback journal: any number of processes may read and write, over a network's file
system too, and one that is killed leaves the file as it was before its last transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from math import inf
from pathlib import Path
from statistics import median

from pydantic import TypeAdapter

from znni.calibration.conditions import Conditions
from znni.errors import InvalidInput
from znni.network import Conv, Operation, PooledConv
from znni.shapes import Shape5
from znni.user_cache import user_cache

# The environment variable that names another file.
VARIABLE = "ZNNI_COSTS"

# The layout below; a file with another is refused.
LAYOUT = 1

# Of one primitive on one shape the latest of these count, by their median: a single one may have
# been disturbed, and old ones are of a machine that was set up otherwise.
LATEST = 5

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
_UNDER = "device = ? AND caches = ? AND threads = ? AND libraries = ?"
_SAME = f"{_UNDER} AND primitive = ? AND version = ? AND operation = ? AND shape = ?"

_OPERATIONS: TypeAdapter[Operation] = TypeAdapter(Operation)
_SHAPES: TypeAdapter[Shape5] = TypeAdapter(Shape5)


@dataclass(frozen=True)
class Measurement:
    """The time of one call of a primitive.

    Attributes:
        primitive: its name in the catalogue.
        version: of the primitive.
        operation: what it computed; the names of layers are not kept.
        shape: of its input.
        seconds: positive.
        day: when it was measured.
    """

    primitive: str
    version: int
    operation: Operation
    shape: Shape5
    seconds: float
    day: date


def today() -> date:
    """The day, the same for all who share a file."""
    return datetime.now(UTC).date()


class CostDatabase:
    """Measurements under any conditions.

    Args:
        path: the file; by default the one that ``ZNNI_COSTS`` names, or one in the user's folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(os.environ.get(VARIABLE) or user_cache() / "costs.sqlite")

    def add(self, conditions: Conditions, measurements: Iterable[Measurement]) -> None:
        """Keep some more, all of them or none.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self._writing() as connection:
            for measured in measurements:
                key = (
                    *conditions,
                    measured.primitive,
                    measured.version,
                    _OPERATIONS.dump_json(_unnamed(measured.operation)).decode(),
                    _SHAPES.dump_json(measured.shape).decode(),
                )
                taken = measured.seconds, measured.day.isoformat()
                _keep(connection, "measurements", _SAME, key, taken)

    def measured(self, conditions: Conditions) -> list[Measurement]:
        """What was measured under these conditions, one for each version, operation and shape.

        Raises:
            InvalidInput: the file cannot be read, or is not such a database.
        """
        columns = "primitive, version, operation, shape, seconds, day"
        query = f"SELECT {columns} FROM measurements WHERE {_UNDER} ORDER BY rowid"
        found: dict[tuple[object, ...], list[Measurement]] = {}
        with self._reading() as connection:
            if connection:
                for row in connection.execute(query, conditions):
                    found.setdefault(row[:4], []).append(_measurement(*row))
        return [
            replace(same[-1], seconds=median(measured.seconds for measured in same))
            for same in found.values()
        ]

    def add_rates(self, conditions: Conditions, rates: Mapping[str, float]) -> None:
        """Keep how long units of what a run does beside its layers took, all of them or none.

        Args:
            conditions: under which.
            rates: seconds of each, by name.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self._writing() as connection:
            for name, seconds in rates.items():
                taken = seconds, today().isoformat()
                _keep(connection, "rates", f"{_UNDER} AND name = ?", (*conditions, name), taken)

    def rates(self, conditions: Conditions) -> dict[str, float]:
        """Seconds of each that was measured under these conditions, by name: the median.

        Raises:
            InvalidInput: the file cannot be read, or is not such a database.
        """
        found: dict[str, list[float]] = {}
        with self._reading() as connection:
            if connection and _has_rates(connection):
                query = f"SELECT name, seconds FROM rates WHERE {_UNDER}"
                for name, seconds in connection.execute(query, conditions):
                    found.setdefault(name, []).append(_checked(name, seconds))
        return {name: median(seconds) for name, seconds in found.items()}

    def forget_rates(self, conditions: Conditions) -> None:
        """Delete those that were measured under these conditions.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self._writing() as connection:
            connection.execute(f"DELETE FROM rates WHERE {_UNDER}", conditions)

    def forget(self, conditions: Conditions, primitives: Collection[str]) -> int:
        """Delete what was measured of some primitives under these conditions.

        Returns:
            how many measurements that were.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self._writing() as connection:
            query = f"DELETE FROM measurements WHERE {_UNDER} AND primitive = ?"
            return sum(connection.execute(query, (*conditions, p)).rowcount for p in primitives)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """The tables; None where there are none yet."""
        with self._errors("read"):
            if not self.path.exists():
                yield None
                return
            # Files that cannot be written are only read; none is made.
            address = f"{self.path.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, timeout=WAIT_SECONDS, uri=True)) as connection:
                yield connection if _has_table(connection) else None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, on tables that are made if there are none."""
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
        except (sqlite3.Error, OSError, ValueError, InvalidInput) as error:
            reason = str(error).splitlines()[0]
            raise InvalidInput(
                f"{self.path}: measured costs cannot be {what}: {reason}; delete the file, or name "
                f"another one with {VARIABLE}"
            ) from error


def _keep(
    connection: sqlite3.Connection,
    table: str,
    same: str,
    key: tuple[object, ...],
    taken: tuple[float, str],
) -> None:
    """Add a row, of a key with seconds and a day; of that key the latest ones stay."""
    values = (*key, *taken)
    places = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} VALUES ({places})", values)
    connection.execute(
        f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} "
        f"WHERE {same} ORDER BY rowid DESC LIMIT -1 OFFSET {LATEST})",
        key,
    )


def _has_table(connection: sqlite3.Connection) -> bool:
    """Whether there are measurements.

    Raises:
        ValueError: in another layout.
    """
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if layout not in (0, LAYOUT):
        raise ValueError(f"it is of another version of znni (layout {layout}, not {LAYOUT})")
    return bool(layout)


def _has_rates(connection: sqlite3.Connection) -> bool:
    """Whether the file is of a version that keeps them."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'rates'"
    return connection.execute(query).fetchone() is not None


def _checked(what: str, seconds: float) -> float:
    if not 0 < seconds < inf:
        raise ValueError(f"{what} is said to have taken {seconds} s")
    return seconds


def _measurement(
    primitive: str, version: int, operation: str, shape: str, seconds: float, day: str
) -> Measurement:
    _checked(primitive, seconds)
    done, size = _OPERATIONS.validate_json(operation), _SHAPES.validate_json(shape)
    return Measurement(primitive, version, done, size, seconds, date.fromisoformat(day))


def _unnamed(operation: Operation) -> Operation:
    """The same of any network: what is measured of one layer holds for all that are like it."""
    if isinstance(operation, PooledConv):
        conv, pool = operation.conv, operation.pool
        return PooledConv(replace(conv, name="conv"), replace(pool, name="pool"))
    return replace(operation, name="conv" if isinstance(operation, Conv) else "pool")
