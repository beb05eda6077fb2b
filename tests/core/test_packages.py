"""The installed packages: found by their metadata's folders, wherever modules are looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from znni.core.packages import package_folders


def test_packages_are_told_with_their_versions(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one-1.2.dist-info", "two-0.3-py3.11.egg-info", "three"):
        (own_folder / "site" / name).mkdir(parents=True)
    Path("here-4.dist-info").mkdir()
    Path("file.zip").touch()
    monkeypatch.setattr(sys, "path", ["", "site", "file.zip", "missing"])
    assert package_folders() == ["here-4", "one-1.2", "two-0.3-py3.11"]


def test_the_packages_of_this_interpreter_are_found() -> None:
    assert any(name.startswith("numpy-") for name in package_folders())
