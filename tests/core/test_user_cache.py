"""The user's folder for files that can be made again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import time

import pytest

from znni.core import user_cache
from znni.core.user_cache import (
    DAY,
    MOST_DAYS,
    can_store,
    delete_unused,
    load,
    load_checked,
    state_of_source,
    store,
    store_checked,
    write_whole,
)


def state(root: Path) -> str:
    """The state of the code in a folder, read now."""
    state_of_source.cache_clear()
    return state_of_source(root)


def test_the_state_of_code_changes_with_each_file(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    first, second = tmp_path / "a.py", inner / "b.py"
    first.write_text("1")
    second.write_text("2")
    states = [state(tmp_path)]
    second.write_text("22")  # another size
    states.append(state(tmp_path))
    os.utime(first, ns=(1, 1))  # another time
    states.append(state(tmp_path))
    second.rename(tmp_path / "b.py")  # another place
    states.append(state(tmp_path))
    first.unlink()
    states.append(state(tmp_path))
    assert len(set(states)) == len(states)
    (inner / "__pycache__").mkdir()
    (inner / "__pycache__" / "b.py").write_text("no code of ours")
    (inner / "data.txt").write_text("no code")
    assert state(tmp_path) == states[-1]


def used(folder: Path, name: str, days: float, size: int = 1) -> Path:
    """Make a file that was used some days ago."""
    file = folder / name
    file.write_bytes(bytes(size))
    before = time() - days * DAY
    os.utime(file, (before, before))
    return file


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache of the test's own."""
    monkeypatch.setattr(user_cache, "user_cache", lambda: tmp_path)
    return tmp_path


def test_files_that_nobody_uses_are_deleted_as_new_ones_are_kept(cache: Path) -> None:
    used(cache, "old", MOST_DAYS + 1)
    used(cache, "lock", MOST_DAYS + 1)
    again = used(cache, "again", MOST_DAYS + 1)
    used(cache, "young", MOST_DAYS - 1)
    (cache / "folder").mkdir()
    assert load(again) == b"\0"
    assert store(cache / "new", b"code")
    assert names(cache) == ["again", "folder", "new", "young"]
    used(cache, "old", MOST_DAYS + 1)
    assert store(cache / "newer", b"code")  # a process looks once
    assert "old" in names(cache)


def test_in_a_folder_that_the_user_names_nothing_is_deleted(cache: Path) -> None:
    named = cache.with_name("named")
    named.mkdir()
    used(named, "old", MOST_DAYS + 1)
    assert store(named / "new", b"plan")
    assert names(named) == ["new", "old"]


def test_too_much_goes_oldest_first(tmp_path: Path) -> None:
    for days in (1, 3, 5, 7):
        used(tmp_path, str(days), days, size=10)
    delete_unused(tmp_path, 25)
    assert names(tmp_path) == ["1", "3"]
    delete_unused(tmp_path, 5)
    assert names(tmp_path) == ["1"]  # a process may be about to load it


def test_a_folder_is_used_when_its_files_are_and_goes_as_a_whole(tmp_path: Path) -> None:
    for name, days in (("old", MOST_DAYS + 1), ("used", 3), ("large", 5)):
        (tmp_path / name / "inner").mkdir(parents=True)
        used(tmp_path / name, "network", days)
        used(tmp_path / name / "inner", "weights", MOST_DAYS + 1, size=10)
    delete_unused(tmp_path, 22)
    assert names(tmp_path) == ["large", "used"]
    delete_unused(tmp_path, 21)
    assert names(tmp_path) == ["used"]
    assert names(tmp_path / "used") == ["inner", "network"]
    assert names(tmp_path / "used" / "inner") == ["weights"]


def test_several_processes_may_delete_at_once(tmp_path: Path) -> None:
    for number in range(200):
        used(tmp_path, str(number), MOST_DAYS + 1)
    used(tmp_path, "young", 1)
    code = f"from znni.core.user_cache import *; delete_unused(Path({str(tmp_path)!r}), 9)"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait() for process in started] == [0] * 3
    assert names(tmp_path) == ["young"]


def test_the_time_of_a_file_is_that_of_its_last_use(tmp_path: Path) -> None:
    before = used(tmp_path, "before", 2), used(tmp_path, "today", 0.5)
    times = [file.stat().st_mtime for file in before]
    assert all(load(file) for file in before)
    after = [file.stat().st_mtime for file in before]
    assert after[0] > times[0] + DAY
    assert after[1] == times[1]


def test_a_folder_that_takes_no_files_is_noticed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert can_store(tmp_path / "new")
    assert names(tmp_path / "new") == []
    in_the_way = used(tmp_path, "file", 0)
    assert not can_store(in_the_way / "kernels")
    assert not can_store(in_the_way / "kernels")
    assert caplog.text.count("cannot be written") == 1


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "folder", b"code")
    assert names(tmp_path) == ["folder"]


def test_an_interrupt_after_a_file_has_its_name_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def interrupted(partial: Path, path: Path) -> None:
        replace(partial, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store(tmp_path / "file", b"code")
    assert names(tmp_path) == ["file"]


def test_a_file_with_a_checksum_is_absent_if_it_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert load_checked(file) is None
    for content in (b"some code", b""):
        store_checked(file, content)
        assert load_checked(file) == content
        whole = file.read_bytes()
        for damaged in (b"", whole[:-1], whole[:20], whole + b"x", b"x" + whole[1:]):
            file.write_bytes(damaged)
            assert load_checked(file) is None
