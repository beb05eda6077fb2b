"""Values kept in the user's cache: read as they were, and nothing else is read."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path

import pytest

from znni.core.shapes import Box, Vec3
from znni.core.user_cache import Notes
from znni.core.value_cache import keep_value, kept_value, sum_of

BOX = Box(Vec3(0, 1, 2), Vec3(3, 4, 5))


def test_a_value_is_read_as_it_was(tmp_path: Path) -> None:
    value = (BOX, tmp_path, {"a": [1.5, None, True]}, frozenset({2}))
    keep_value(tmp_path / "value", value)
    assert kept_value(tmp_path / "value", tuple) == value
    keep_value(tmp_path / "value", BOX)
    assert kept_value(tmp_path / "value", Box) == BOX
    assert kept_value(tmp_path / "value", Vec3) is None


def test_a_file_that_is_absent_or_damaged_has_no_value(tmp_path: Path) -> None:
    path = tmp_path / "value"
    assert kept_value(path, Box) is None
    keep_value(path, BOX)
    content = path.read_bytes()
    for damaged in (b"", content[:-1], content[:20], content.replace(b"Box", b"Bax"), content[65:]):
        path.write_bytes(damaged)
        assert kept_value(path, Box) is None


class _Calls:
    def __reduce__(self) -> tuple[object, ...]:
        return os.getenv, ("HOME",)


@pytest.mark.parametrize(
    "other",
    [_Calls(), Counter("a"), sum_of, Path.cwd, Notes("any", 1, int)],
    ids=["call", "another library's", "function", "method", "value with a function"],
)
def test_nothing_but_values_is_read(tmp_path: Path, other: object) -> None:
    content = pickle.dumps(other)
    (tmp_path / "value").write_bytes(sum_of(content) + b"\n" + content)
    assert kept_value(tmp_path / "value", object) is None


def test_a_class_that_is_gone_has_no_value(tmp_path: Path) -> None:
    for there, gone in ((b"znni.core.shapes", b"znni.core.gone_by"), (b"Vec3", b"Vec0")):
        content = pickle.dumps(BOX).replace(there, gone)
        (tmp_path / "value").write_bytes(sum_of(content) + b"\n" + content)
        assert kept_value(tmp_path / "value", object) is None
