"""Measured memory is in bytes, whatever unit the system uses."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from znni.machine import arrays
from znni.machine.arrays import high_water_mark, peak_memory, resident_shared_memory


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_largest_since_the_start_where_there_is_no_better(
    system: str, unit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATM", "STATUS", "CLEAR_REFS"):  # files that no other system has
        monkeypatch.setattr(f"znni.machine.arrays.{name}", str(tmp_path / name))
    monkeypatch.setattr(sys, "platform", system)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with peak_memory() as peak:
        found = high_water_mark()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert before * unit <= found <= after * unit
    assert peak.highest >= found


def test_a_system_that_tells_nothing_of_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_content", lambda _: b"Name:\tpython\nVmHWM:\t  12 kB\n")
    assert resident_shared_memory() == 0
    assert high_water_mark() == 12 * 1024
