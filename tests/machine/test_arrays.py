"""Measured memory is in bytes, whatever unit the system uses."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from znni.machine.arrays import high_water_mark, peak_memory


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_largest_since_the_start_where_there_is_no_better(
    system: str, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_path: Path, *_: object) -> None:
        raise FileNotFoundError("no /proc here")

    monkeypatch.setattr(Path, "read_bytes", missing)
    monkeypatch.setattr(Path, "write_bytes", missing)
    monkeypatch.setattr(sys, "platform", system)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with peak_memory() as peak:
        found = high_water_mark()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert before * unit <= found <= after * unit
    assert peak.highest >= found
