"""Measured times of primitives' calls, and of a run's work outside its layers.

``cost_file`` says where the file is, and opens it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from znni.calibration.conditions import Conditions
from znni.calibration.cost_file import CostFile
from znni.core.shapes import Shape5
from znni.network.layers import Operation, unnamed

if TYPE_CHECKING:
    import sqlite3

# Measurements that are kept for one primitive on one shape; their median counts. A single one may
# have been disturbed, and the machine may have been set up differently for old ones.
LATEST = 5

_UNDER = "device = ? AND caches = ? AND threads = ? AND libraries = ?"
_SAME = f"{_UNDER} AND primitive = ? AND version = ? AND operation = ? AND shape = ?"

# Texts of operations, and of shapes, whose values are kept. A database is read to plan a run, and
# again to refine it, and many entries have the same texts.
MOST_TEXTS = 4096


@cache
def _operations() -> TypeAdapter[Operation]:
    return TypeAdapter(Operation)


@cache
def _shapes() -> TypeAdapter[Shape5]:
    return TypeAdapter(Shape5)


@dataclass(frozen=True)
class Measurement:
    """The time of one call of a primitive.

    Attributes:
        primitive: its name in the catalogue.
        version: version of the primitive.
        operation: operation that it computed, without names of layers.
        shape: shape of its input.
        seconds: measured time; positive.
        day: day of the measurement.
        times: number of measurements of which it is the median.
    """

    primitive: str
    version: int
    operation: Operation
    shape: Shape5
    seconds: float
    day: date
    times: int = 1


def today() -> date:
    """Return today's date in UTC, so that all who share a file agree."""
    return datetime.now(UTC).date()


class CostDatabase(CostFile):
    """Measurements under all conditions."""

    def add(self, conditions: Conditions, measurements: Iterable[Measurement]) -> None:
        """Add measurements: all of them or none.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self.writing() as connection:
            for measured in measurements:
                key = (
                    *conditions,
                    measured.primitive,
                    measured.version,
                    _operations().dump_json(unnamed(measured.operation)).decode(),
                    _shapes().dump_json(measured.shape).decode(),
                )
                taken = measured.seconds, measured.day.isoformat()
                _keep(connection, "measurements", _SAME, key, taken)

    def measured(self, conditions: Conditions) -> list[Measurement]:
        """Return the measurements under these conditions, one per version, operation and shape.

        The last one is that of the latest measured call.

        Raises:
            InvalidInput: the file cannot be read, or is not such a database.
        """
        columns = "primitive, version, operation, shape, seconds, day"
        query = f"SELECT {columns} FROM measurements WHERE {_UNDER} ORDER BY rowid"
        found: dict[tuple[object, ...], list[Measurement]] = {}
        with self.reading() as connection:
            if connection:
                for row in connection.execute(query, conditions):
                    found[row[:4]] = [*found.pop(row[:4], []), _measurement(*row)]
        return [
            replace(same[-1], seconds=median(it.seconds for it in same), times=len(same))
            for same in found.values()
        ]

    def add_rates(self, conditions: Conditions, rates: Mapping[str, float]) -> None:
        """Add times per unit of a run's work outside its layers: all of them or none.

        Args:
            conditions: conditions of the measurement.
            rates: seconds per unit, by name.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self.writing() as connection:
            for name, seconds in rates.items():
                taken = seconds, today().isoformat()
                _keep(connection, "rates", f"{_UNDER} AND name = ?", (*conditions, name), taken)

    def rates(self, conditions: Conditions) -> dict[str, float]:
        """Return the median seconds per unit under these conditions, by name.

        Raises:
            InvalidInput: the file cannot be read, or is not such a database.
        """
        found: dict[str, list[float]] = {}
        with self.reading() as connection:
            if connection and _has_rates(connection):
                query = f"SELECT name, seconds FROM rates WHERE {_UNDER}"
                for name, seconds in connection.execute(query, conditions):
                    found.setdefault(name, []).append(_checked(name, seconds))
        return {name: median(seconds) for name, seconds in found.items()}

    def forget_rates(self, conditions: Conditions) -> None:
        """Delete all rates measured under these conditions.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self.writing() as connection:
            connection.execute(f"DELETE FROM rates WHERE {_UNDER}", conditions)

    def forget(self, conditions: Conditions, primitives: Collection[str]) -> int:
        """Delete all measurements of some primitives under these conditions.

        Returns:
            The number of deleted measurements.

        Raises:
            InvalidInput: the file cannot be written, or is not such a database.
        """
        with self.writing() as connection:
            query = f"DELETE FROM measurements WHERE {_UNDER} AND primitive = ?"
            return sum(connection.execute(query, (*conditions, p)).rowcount for p in primitives)


def _keep(
    connection: sqlite3.Connection,
    table: str,
    same: str,
    key: tuple[object, ...],
    taken: tuple[float, str],
) -> None:
    """Add a row with a key, seconds and a day, and delete all but the latest rows of that key."""
    values = (*key, *taken)
    places = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} VALUES ({places})", values)
    connection.execute(
        f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} "
        f"WHERE {same} ORDER BY rowid DESC LIMIT -1 OFFSET {LATEST})",
        key,
    )


def _has_rates(connection: sqlite3.Connection) -> bool:
    """Return whether the file has a table of rates; older versions did not make one."""
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
    done, size = _operation(operation), _shape(shape)
    return Measurement(primitive, version, done, size, seconds, date.fromisoformat(day))


@lru_cache(maxsize=MOST_TEXTS)
def _operation(text: str) -> Operation:
    return _operations().validate_json(text)


@lru_cache(maxsize=MOST_TEXTS)
def _shape(text: str) -> Shape5:
    return _shapes().validate_json(text)
