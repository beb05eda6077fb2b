"""Values in the user's cache: read as they were, and nothing else is read."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path

import pytest

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.core.user_cache import store_checked
from znni.core.value_cache import ValueCache, load_value, store_value

BOX = Box(Vec3(0, 1, 2), Vec3(3, 4, 5))


def test_a_value_is_read_as_it_was(tmp_path: Path) -> None:
    value = (BOX, tmp_path, {"a": [1.5, None, True]}, frozenset({2}))
    store_value(tmp_path / "value", value)
    assert load_value(tmp_path / "value", tuple) == value
    store_value(tmp_path / "value", BOX)
    assert load_value(tmp_path / "value", Box) == BOX
    assert load_value(tmp_path / "value", Vec3) is None


def test_a_value_is_stored_without_its_memos(tmp_path: Path) -> None:
    value = Resampling(Vec3(4, 5, 6), Vec3(7, 8, 9), (1, 1, 3))
    assert value.taps[0].taps == 2  # a memo of arrays, which files never hold
    store_value(tmp_path / "value", (value, value))
    found = load_value(tmp_path / "value", tuple)
    assert found == (value, value)
    assert found[0] is found[1]
    assert "taps" in vars(value)
    assert "taps" not in vars(found[0])


def test_a_file_that_is_absent_or_damaged_has_no_value(tmp_path: Path) -> None:
    path = tmp_path / "value"
    assert load_value(path, Box) is None
    store_value(path, BOX)
    content = path.read_bytes()
    for damaged in (b"", content[:-1], content[:20], content.replace(b"Box", b"Bax"), content[32:]):
        path.write_bytes(damaged)
        assert load_value(path, Box) is None


class _Calls:
    def __reduce__(self) -> tuple[object, ...]:
        return os.getenv, ("HOME",)


class _OfOtherFields:
    def __reduce__(self) -> tuple[object, ...]:
        return Vec3, (1,)


@pytest.mark.parametrize(
    "other",
    [_Calls(), Counter("a"), store_value, Path.cwd, _OfOtherFields()],
    ids=["call", "another library's", "function", "method", "other fields"],
)
def test_nothing_but_values_is_read(tmp_path: Path, other: object) -> None:
    store_checked(tmp_path / "value", pickle.dumps(other))
    assert load_value(tmp_path / "value", object) is None


def test_a_class_that_is_gone_has_no_value(tmp_path: Path) -> None:
    for there, gone in ((b"znni.core.shapes", b"znni.core.gone_by"), (b"Vec3", b"Vec0")):
        store_checked(tmp_path / "value", pickle.dumps(BOX).replace(there, gone))
        assert load_value(tmp_path / "value", object) is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the values, in a user's cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "znni" / "numbers"


def test_values_are_known_by_all_that_they_depend_on(folder: Path) -> None:
    numbers = ValueCache[list[int]]("numbers", 1, list)
    assert numbers.load("key") is None
    numbers.store("key", [1, 1])
    assert numbers.load("key") == [1, 1]
    assert numbers.load(["key"]) is None
    assert len(list(folder.iterdir())) == 1
    newer = ValueCache[list[int]]("numbers", 2, list)
    assert newer.load("key") is None
    newer.store("key", [2])
    assert (numbers.load("key"), newer.load("key")) == ([1, 1], [2])


def test_a_damaged_value_is_replaced(folder: Path) -> None:
    numbers = ValueCache[list[int]]("numbers", 1, list)
    numbers.store("key", [1])
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert numbers.load("key") is None
    numbers.store("key", [1])
    assert numbers.load("key") == [1]
    assert ValueCache("numbers", 1, str).load("key") is None  # it is of another kind
