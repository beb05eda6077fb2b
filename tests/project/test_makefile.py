"""The quick tests exist, and no two modules of tests have one name."""

from __future__ import annotations

from collections import Counter

from paths import ROOT


def test_the_quick_tests_exist() -> None:
    """Pytest reads the file by itself: each line is an argument."""
    named = (ROOT / "tests" / "quick.txt").read_text().splitlines()
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_no_two_modules_of_tests_have_one_name() -> None:
    """Pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
