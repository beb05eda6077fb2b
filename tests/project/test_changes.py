"""Fragments of the changelog have names that towncrier understands."""

from __future__ import annotations

import re
import tomllib

from paths import ROOT

NAME = re.compile(r"(\d+|\+[a-z-]+)\.(\w+)(\.\d+)?\.md")


def test_every_fragment_is_of_a_known_kind() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = {each["directory"] for each in settings["type"]}
    names = {path.name for path in (ROOT / settings["directory"]).iterdir()} - {"README.md"}
    found = [match[2] for name in names if (match := NAME.fullmatch(name))]
    assert len(found) == len(names)
    assert {*found} <= kinds


def test_the_changelog_has_a_place_for_them() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    assert (ROOT / settings["filename"]).read_text().count(settings["start_string"]) == 1
