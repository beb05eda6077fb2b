"""The Makefile names tests that exist, and no two modules of tests have one name."""

from __future__ import annotations

import re
from collections import Counter

from paths import ROOT


def test_the_tests_of_make_quick_exist() -> None:
    named = re.findall(r"\btests/[\w/.]+", (ROOT / "Makefile").read_text())
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_no_two_modules_of_tests_have_one_name() -> None:
    """Pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
