"""The file of measured costs: its contents, their validity, and its errors."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import date
from functools import partial
from math import inf
from pathlib import Path

import pytest
from fakes import machine

from znni.calibration import conditions
from znni.calibration.conditions import Conditions
from znni.calibration.cost_file import VARIABLE
from znni.calibration.database import LATEST, CostDatabase, Measurement
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv, Operation, PackedLayer, Pool, PooledConv, unnamed

CONV = Conv("conv", 2, 3, Vec3(1, 2, 3), "elu")
POOL = Pool("pool", Vec3(3, 2, 1))
SHAPE = Shape5(7, 2, 5, 11, 13)
DAY = date(2026, 11, 21)
HERE = Conditions("a processor", "L1d 32K", 3, "numba 1.2.3")
MEASURED = Measurement("direct", 1, CONV, SHAPE, 0.25, DAY)


@pytest.fixture
def database(tmp_path: Path) -> CostDatabase:
    return CostDatabase(tmp_path / "cache" / "costs.sqlite")


@pytest.mark.parametrize("operation", [CONV, POOL, PooledConv(CONV, POOL)])
def test_what_is_added_is_found(database: CostDatabase, operation: Operation) -> None:
    assert database.measured(HERE) == []
    measured = replace(MEASURED, operation=operation)
    database.add(HERE, [measured])
    assert CostDatabase(database.path).measured(HERE) == [measured]


def test_operations_and_shapes_are_checked_once(
    database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = replace(MEASURED, shape=Shape5(1, 2, 97, 89, 83))  # which no other test has
    database.add(HERE, [measured])
    assert database.measured(HERE) == [measured]
    for name in ("_operations", "_shapes"):
        monkeypatch.setattr(f"znni.calibration.database.{name}", pytest.fail)
    assert CostDatabase(database.path).measured(HERE) == [measured]


def test_names_of_layers_do_not_matter(database: CostDatabase) -> None:
    pair = PooledConv(replace(CONV, name="a"), replace(POOL, name="b"))
    for operation in (replace(CONV, name="last"), replace(POOL, name="first"), pair):
        database.add(HERE, [replace(MEASURED, operation=operation)])
    found = {measured.operation for measured in database.measured(HERE)}
    assert found == {CONV, POOL, PooledConv(CONV, POOL)}


def test_voxels_that_are_not_added_up_do_not_matter(database: CostDatabase) -> None:
    summing = PackedLayer(unnamed(CONV), reads=True, writes=True, sums=True)
    leaving_out = replace(summing, left_out=Vec3(1, 1, 1))
    for operation, seconds in ((summing, 1.0), (leaving_out, 3.0)):
        database.add(HERE, [replace(MEASURED, operation=operation, seconds=seconds)])
    (found,) = database.measured(HERE)
    assert (found.operation, found.seconds, found.times) == (summing, 2.0, 2)


def test_the_median_of_the_latest_counts(database: CostDatabase) -> None:
    for second in (1000.0, *range(1, LATEST), 900.0):
        database.add(HERE, [replace(MEASURED, seconds=float(second))])
    (found,) = database.measured(HERE)
    assert found.seconds == LATEST // 2 + 1
    with closing(sqlite3.connect(database.path)) as connection:
        kept = connection.execute("SELECT seconds FROM measurements").fetchall()
    assert [seconds for (seconds,) in kept] == [*range(1, LATEST), 900.0]


@pytest.mark.parametrize(
    "change",
    [
        {"device": "another"},
        {"caches": "L1d 48K"},
        {"threads": 2},
        {"libraries": "numba 1.2.4"},
    ],
)
def test_measurements_hold_under_their_conditions_only(
    database: CostDatabase, change: dict[str, object]
) -> None:
    elsewhere = HERE._replace(**change)  # type: ignore[arg-type]
    database.add(elsewhere, [replace(MEASURED, seconds=9.0)])
    assert database.measured(HERE) == []
    database.add(HERE, [MEASURED])
    assert database.measured(HERE) == [MEASURED]
    assert [measured.seconds for measured in database.measured(elsewhere)] == [9.0]


def test_versions_and_shapes_are_kept_apart(database: CostDatabase) -> None:
    others = [
        replace(MEASURED, version=2),
        replace(MEASURED, primitive="lowered"),
        replace(MEASURED, shape=SHAPE._replace(n=1)),
        replace(MEASURED, operation=replace(CONV, activation="relu")),
    ]
    database.add(HERE, [MEASURED, *others])
    assert database.measured(HERE) == [MEASURED, *others]


def test_forgetting(database: CostDatabase) -> None:
    assert database.forget(HERE, ["direct"]) == 0
    elsewhere, other = HERE._replace(threads=1), replace(MEASURED, primitive="lowered")
    database.add(elsewhere, [MEASURED])
    database.add(HERE, [MEASURED, other])
    assert database.forget(HERE, ["direct", "unknown"]) == 1
    assert database.measured(HERE) == [other]
    assert database.measured(elsewhere) == [MEASURED]


WRITE = """
import sys
from dataclasses import replace
from pathlib import Path
from test_measured_costs_file import HERE, MEASURED, SHAPE, CostDatabase
for extent in range(20):
    one = replace(MEASURED, primitive=sys.argv[2], shape=SHAPE._replace(z=extent))
    CostDatabase(Path(sys.argv[1])).add(HERE, [one])
"""


@pytest.mark.slow
def test_two_programs_may_write_at_once(database: CostDatabase) -> None:
    start = [sys.executable, "-c", WRITE, str(database.path)]
    folder = Path(__file__).parent  # the writers import this module and its imports
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [
        subprocess.Popen([*start, name], cwd=folder, env=env) for name in ("direct", "lowered")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = [(measured.primitive, measured.shape.z) for measured in database.measured(HERE)]
    assert sorted(found) == [(name, z) for name in ("direct", "lowered") for z in range(20)]


def text(path: Path) -> None:
    path.write_text("no database " * 1000)


def cut_short(path: Path) -> None:
    found = [replace(MEASURED, shape=SHAPE._replace(z=z)) for z in range(200)]
    CostDatabase(path).add(HERE, found)
    path.write_bytes(path.read_bytes()[:6000])


def change(path: Path, statement: str) -> None:
    CostDatabase(path).add(HERE, [MEASURED])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def add_seconds(path: Path, seconds: float) -> None:
    CostDatabase(path).add(HERE, [replace(MEASURED, seconds=seconds)])


OPERATIONS = "UPDATE measurements SET operation ="
SPOILT: dict[str, Callable[[Path], None]] = {
    "text": text,
    "cut short": cut_short,
    "of another version": partial(change, statement="PRAGMA user_version = 99"),
    "without sense": partial(change, statement=f"{OPERATIONS} '{{}}'"),
    "impossible": partial(change, statement=f"{OPERATIONS} replace(operation, ':3', ':0')"),
    "negative": partial(add_seconds, seconds=-1.0),
    "endless": partial(add_seconds, seconds=inf),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "costs.sqlite"
    SPOILT[fault](path)
    said = rf"costs\.sqlite: measured costs cannot be read: .*; delete the file.* with {VARIABLE}"
    with pytest.raises(InvalidInput, match=said) as refused:
        CostDatabase(path).measured(HERE)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    text(tmp_path / "text")
    for path in (tmp_path / "file" / "costs.sqlite", tmp_path / "folder", tmp_path / "text"):
        with pytest.raises(InvalidInput, match="measured costs cannot be written: "):
            CostDatabase(path).add(HERE, [MEASURED])


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "costs.sqlite"
    with pytest.raises(InvalidInput) as refused:
        CostDatabase(path).add(HERE, [MEASURED])
    assert str(refused.value) == (
        f"{path}: measured costs cannot be written: File exists; name another file with {VARIABLE}"
    )


def test_an_empty_file_holds_nothing_yet(database: CostDatabase) -> None:
    database.path.parent.mkdir()
    database.path.touch()
    assert database.measured(HERE) == []
    database.add(HERE, [MEASURED])
    assert database.measured(HERE) == [MEASURED]


def test_all_or_nothing_is_added(database: CostDatabase) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        database.add(HERE, [MEASURED, replace(MEASURED, seconds=float("nan"))])
    assert database.measured(HERE) == []


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "here.db")
    assert CostDatabase().path == Path("here.db")
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert CostDatabase().path == tmp_path / "znni" / "costs.sqlite"


def test_the_conditions_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = Conditions.of(machine(threads=3).host)
    assert (here.device, here.threads) == ("fake", 3)
    assert "numpy 2." in here.libraries
    monkeypatch.setattr(conditions, "CACHES", tmp_path)
    for index, level, kind, size in (
        (0, 1, "Data", "32K"),
        (1, 1, "Instruction", "64K"),
        (2, 2, "Unified", "1024K"),
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    conditions._caches.cache_clear()
    try:
        assert Conditions.of(machine().host).caches == "L1d 32K, L2 1024K"
    finally:
        conditions._caches.cache_clear()
