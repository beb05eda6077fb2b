"""Notes of the memory that a virtual machine has touched since it started."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from znni.core.user_cache import user_cache
from znni.machine import cold_pages
from znni.machine.cold_pages import (
    FREE_AGAIN_BYTES,
    WARM_BYTES,
    cold_share,
    is_virtual,
    note_warm,
    warm_bytes,
)

GIB = 2**30


@pytest.fixture(autouse=True)
def virtual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a virtual machine; return the file that names its start."""
    boot, processors = tmp_path / "boot_id", tmp_path / "cpuinfo"
    boot.write_text("first-start\n")
    processors.write_text("processor : 0\nflags\t\t: fpu avx2 hypervisor lm\n")
    monkeypatch.setattr(cold_pages, "BOOT", boot)
    monkeypatch.setattr(cold_pages, "PROCESSORS", processors)
    monkeypatch.setattr(cold_pages, "BALLOONS", tmp_path / "virtio_balloon")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return boot


def test_what_a_run_took_is_warm_until_the_system_starts_again(virtual: Path) -> None:
    assert warm_bytes() == WARM_BYTES
    note_warm(3 * GIB)
    assert warm_bytes() == 3 * GIB
    note_warm(GIB)  # less than before
    assert warm_bytes() == 3 * GIB
    virtual.write_text("second-start\n")
    assert warm_bytes() == WARM_BYTES


def test_a_little_more_changes_nothing_so_plans_stay() -> None:
    note_warm(4 * GIB)
    note_warm(int(5.9 * GIB))
    assert warm_bytes() == 4 * GIB
    note_warm(6 * GIB + 5)
    assert warm_bytes() == 6 * GIB


def test_small_runs_leave_no_note() -> None:
    note_warm(WARM_BYTES)
    note_warm(0)
    assert not (user_cache() / "touched").exists()


def test_memory_of_other_machines_is_never_cold(virtual: Path) -> None:
    cold_pages.PROCESSORS.write_text("flags : fpu avx2\n")
    assert not is_virtual()
    assert warm_bytes() == inf
    note_warm(8 * GIB)
    assert not (user_cache() / "touched").exists()
    cold_pages.PROCESSORS.unlink()  # no Linux
    assert warm_bytes() == inf
    assert virtual.exists()


def test_damaged_notes_count_as_none() -> None:
    note_warm(8 * GIB)
    (note,) = (user_cache() / "touched").iterdir()
    note.write_bytes(note.read_bytes()[:-1])
    assert warm_bytes() == WARM_BYTES


@pytest.mark.parametrize(
    ("features", "warm"), [("0110010", FREE_AGAIN_BYTES), ("0110000", 3 * GIB), ("", 3 * GIB)]
)
def test_pages_that_the_host_takes_back_are_cold_again(features: str, warm: int) -> None:
    note_warm(3 * GIB)
    balloon = cold_pages.BALLOONS / "virtio0"
    balloon.mkdir(parents=True)
    (balloon / "features").write_text(features)
    assert warm_bytes() == warm
    assert cold_share() == (0.5 if warm < WARM_BYTES else 1.0)
    note_warm(6 * GIB)
    (balloon / "features").unlink()
    assert warm_bytes() == (3 * GIB if warm < WARM_BYTES else 6 * GIB)  # or nothing was noted
