"""How busy other programs keep the cores, by what the system tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from znni.machine import busy
from znni.machine.busy import slowdown


@pytest.mark.parametrize(
    ("loads", "slower"),
    [
        ("8.00 7.00 6.00 9/400 123\n", 3.0),  # 8 others on 4 cores
        ("0.50 7.00 6.00 9/400 123\n", 1.125),  # they have just begun
        ("8.00 7.00 6.00 1/400 123\n", 1.0),  # they have ended
        ("", 1.0),
        ("of another system", 1.0),
    ],
)
def test_all_threads_share_the_cores(
    loads: str, slower: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loadavg").write_text(loads)
    monkeypatch.setattr(busy, "LOADS", tmp_path / "loadavg")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert slowdown() == slower


def test_a_system_that_does_not_tell() -> None:
    assert slowdown() == 1.0
