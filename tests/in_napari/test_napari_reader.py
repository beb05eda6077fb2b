"""napari finds the plugin by its manifest, which names things that exist."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from paths import ROOT
from ruamel.yaml import YAML

from znni.volumes.formats import formats

FOLDER = ROOT / "znni" / "napari"


@pytest.fixture
def manifest() -> dict[str, object]:
    found: dict[str, object] = YAML(typ="safe").load((FOLDER / "napari.yaml").read_text())
    return found


def test_the_manifest_names_what_there_is(manifest: dict[str, object]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["napari.manifest"] == {"znni": "znni.napari:napari.yaml"}
    assert manifest["name"] == project["name"]
    contributions = manifest["contributions"]
    assert isinstance(contributions, dict)
    known = {command["id"] for command in contributions.pop("commands")}
    used = {each["command"] for kind in contributions.values() for each in kind}
    assert used == known


def test_the_manifest_names_code_that_there_is(manifest: dict[str, object]) -> None:
    contributions = manifest["contributions"]
    assert isinstance(contributions, dict)
    for command in contributions["commands"]:
        module, name = command["python_name"].split(":")
        tree = ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())
        assert name in {getattr(node, "name", "") for node in tree.body}


def test_the_endings_are_those_of_formats(manifest: dict[str, object]) -> None:
    contributions = manifest["contributions"]
    assert isinstance(contributions, dict)
    (reader,) = contributions["readers"]
    endings = {ending for form in formats() for ending in form.endings}
    assert {pattern.removeprefix("*") for pattern in reader["filename_patterns"]} <= endings
