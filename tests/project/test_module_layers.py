"""Modules have the layers that ARCHITECTURE.md draws, and each of them is short."""

from __future__ import annotations

import re
import tomllib

from paths import ROOT


def held() -> list[set[str]]:
    """The layers of the contract, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    return [set(layer.replace("znni.", "").split(" | ")) for layer in contract["layers"]]


def test_the_map_has_the_layers_of_the_contract() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    drawing = text.split("## Layers")[1].split("```")[1]
    names = re.findall(r"^(\w+(?: \| \w+)*)(?:$|  )", drawing, flags=re.MULTILINE)
    assert [set(line.split(" | ")) for line in names] == held()


def test_every_module_has_a_layer() -> None:
    found = {path.stem for path in (ROOT / "znni").iterdir() if path.suffix in ("", ".py")}
    modules = {name for name in found if not name.startswith("_")}
    assert modules == set.union(*held()) - {"planner"}


def test_a_module_has_at_most_400_lines() -> None:
    modules = [path for code in ("znni", "planner") for path in (ROOT / code).rglob("*.py")]
    assert len(modules) > 300
    lengths = {str(path): len(path.read_text().splitlines()) for path in modules}
    assert not {path: length for path, length in lengths.items() if length > 400}
